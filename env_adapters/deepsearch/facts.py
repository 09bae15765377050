"""Facts of the World Factbook with one short, unambiguous answer, and the search terms for each kind of fact."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from env_adapters.deepsearch.answers import normalize_answer
from env_adapters.deepsearch.factbook import Country, countries, strip_accents

Answers = tuple[str, ...]
"""Spellings of one answer, the preferred one first; empty if the Factbook states no unambiguous answer."""
Reader = Callable[[Country], Answers]

WORDS = re.compile(r"[^\W\d_][\w' .-]*")
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
INDEPENDENCE = rf"(\d{{1,2}}) ({MONTHS}) (\d{{4}}) \(from (?:the )?[^;,()]+\)"
"""Day of independence from another country."""
FORM = re.compile(r"([^;,()]+?)(?: \(([^;,()]+)\))?")
"""A name, optionally followed by another form in parentheses."""


@dataclass(frozen=True)
class Relation:
    """Kind of fact.

    Attributes:
        name: short name, part of question ids.
        title: title of the field in the Factbook, part of the title of its passage.
        query: search terms that follow the country's name.
    """

    name: str
    title: str
    query: str
    read: Reader


def spellings(*forms: str | None) -> Answers:
    """Return each form once: unchanged, without accents, and as each side of a slash."""
    given = [form.strip() for form in forms if form]
    sides = [side.strip() for form in given if "/" in form for side in form.split("/")]
    texts = dict.fromkeys(text for form in (*given, *sides) for text in (form, strip_accents(form)))
    return tuple(text for text in texts if normalize_answer(text))


def name_reader(field: str, subfield: str = "") -> Reader:
    """Return a reader of facts that are one name, optionally with another form in parentheses."""

    def read(country: Country) -> Answers:
        match = FORM.fullmatch(country.fact(field, subfield).replace('"', ""))
        if match is None or not WORDS.fullmatch(match[1]) or match[1] == "none" or len(match[1].split()) > 8:
            return ()
        return spellings(match[1], other_form(match[2]))

    return read


def pattern_reader(pattern: str, field: str, subfield: str = "", forms: Sequence[str] = ("{0}",)) -> Reader:
    """Return a reader of facts that match a pattern as a whole; `forms` are the answers, made from its groups."""

    def read(country: Country) -> Answers:
        match = re.fullmatch(pattern, country.fact(field, subfield))
        return spellings(*(form.format(match[0], *match.groups()) for form in forms)) if match else ()

    return read


def other_form(text: str | None) -> str:
    """Return a text in parentheses if it is a name; "" if it is a remark."""
    return text if text and text[0].isupper() and len(text.split()) <= 6 else ""


def number_reader(field: str, subfield: str = "", unit: str = "") -> Reader:
    """Return a reader of facts that are a whole number, optionally with a unit, before any remark."""

    def read(country: Country) -> Answers:
        match = re.match(rf"([\d,]+){unit and ' ' + unit}(?= \(|$)", country.fact(field, subfield))
        return (match[1], f"{match[1]} {unit}") if match and unit else (match[1],) if match else ()

    return read


def capital(country: Country) -> Answers:
    """Return the capital; empty if there are several."""
    text = country.fact("Capital", "name").replace(", D.C.", "")
    match = re.fullmatch(r"([^;,()]+?)(?: \((?:on |located on |aka )?[^;()]+\))?", text)
    return spellings(match[1]) if match and WORDS.fullmatch(match[1]) and "official" not in text else ()


def highest_point(country: Country) -> Answers:
    """Return the name of the highest point."""
    match = re.fullmatch(r"([^;,()\d]+?)(?: \(([^;()]+)\))? [\d,.]+(?: m)?", country.fact("Elevation", "highest point"))
    return () if match is None or re.search("unnamed|location", match[0]) else spellings(match[1], other_form(match[2]))


def anthem(country: Country) -> Answers:
    """Return the title of the anthem in the original language and in English; empty if there are several anthems."""
    match = re.fullmatch(r'"([^";]+)"(?: \(([^";()]+)\))?', country.fact("National anthem(s)", "title"))
    return spellings(match[1], match[2]) if match else ()


def currency(country: Country) -> Answers:
    """Return the currency: the plural of the Factbook, the singular, and the code."""
    match = re.fullmatch(r"([\w' ]+?) \(([A-Z]{3})\) per US dollar -?", country.fact("Exchange rates", "Currency"))
    if match is None:
        return ()
    singular = re.sub(r"ies$", "y", match[1]) if match[1].endswith("ies") else match[1].removesuffix("s")
    return spellings(match[1], singular, match[2])


def symbol(country: Country) -> Answers:
    """Return the national symbol; empty if there are several."""
    match = FORM.fullmatch(country.fact("National symbol(s)"))
    return spellings(*match.groups()) if match and len(match[1].split()) <= 4 else ()


def neighbors(country: Country) -> list[tuple[str, float]]:
    """Return code and length of the border in km of each neighbor; empty if one neighbor is not recognized."""
    borders = []
    for part in re.split(r"[;]", country.fact("Land boundaries", "border countries")):
        entry = re.fullmatch(r"(.+?) ([\d,.]+) km", part.strip())
        code = code_of(entry[1]) if entry else None
        if entry is None or code is None:
            return []
        borders.append((code, float(entry[2].replace(",", ""))))
    return borders


def only_neighbor(country: Country) -> Answers:
    """Return the only country with a shared land border."""
    borders = neighbors(country)
    return countries()[borders[0][0]].names if len(borders) == 1 else ()


def longest_border(country: Country) -> Answers:
    """Return the neighbor with the longest border, if that is over 10% longer than any other."""
    borders = sorted(neighbors(country), key=lambda border: -border[1])
    return countries()[borders[0][0]].names if len(borders) > 1 and borders[0][1] > 1.1 * borders[1][1] else ()


def export_partner(country: Country) -> Answers:
    """Return the country that takes the largest share of the exports."""
    shares = re.findall(r"(?:^|%, )([A-Z][^%]*?) (\d+)%", country.fact("Exports - partners"))
    return country_names(shares[0][0]) if len(shares) > 1 and int(shares[0][1]) > int(shares[1][1]) else ()


def country_names(name: str) -> Answers:
    """Return all names of the country with this name; empty if it is unknown."""
    code = code_of(name)
    return countries()[code].names if code else ()


def code_of(name: str) -> str | None:
    """Return the code of the country with this name; None if it is unknown."""
    return _codes().get(normalize_answer(strip_accents(re.sub(r" \([A-Z][\w ]+\)$", "", name))))


@cache
def _codes() -> Mapping[str, str]:
    codes: dict[str, str] = {}
    for code, country in countries().items():
        for name in country.names:
            codes.setdefault(normalize_answer(strip_accents(name)), code)
    return codes


AIRCRAFT = "Civil aircraft registration country code prefix"
HEIGHT_FORMS = ("{1} m", "{1}", "{1} meters", "{1} metres")
height = pattern_reader(r"[^\d;,()]+(?: \([^;()]+\))? ([\d,]+) m", "Elevation", "highest point", HEIGHT_FORMS)
independence_year = pattern_reader(INDEPENDENCE, "Independence", forms=("{3}",))
independence_day = pattern_reader(INDEPENDENCE, "Independence", forms=("{1} {2} {3}", "{2} {1}, {3}"))
internet_code = pattern_reader(r"\.[a-z]{2}", "Internet country code")
aircraft_prefix = pattern_reader("[A-Z0-9]{1,2}(-[A-Z]{1,2})?", AIRCRAFT)
nationality = pattern_reader(r"[A-Z][\w-]+", "Nationality", "adjective")


def all_relations() -> Iterator[Relation]:
    """Yield every kind of fact that questions ask for or use as a description."""
    yield Relation("capital", "Capital", "capital name", capital)
    yield Relation("highest_point", "Elevation", "highest point elevation", highest_point)
    yield Relation("height", "Elevation", "highest point elevation", height)
    yield Relation("independence_year", "Independence", "independence", independence_year)
    yield Relation("independence_day", "Independence", "independence", independence_day)
    yield Relation("anthem", "National anthem(s)", "national anthem title", anthem)
    yield Relation("internet_code", "Internet country code", "internet country code", internet_code)
    yield Relation("aircraft_prefix", AIRCRAFT, AIRCRAFT.lower(), aircraft_prefix)
    yield Relation("currency", "Exchange rates", "exchange rates currency", currency)
    yield Relation("nationality", "Nationality", "nationality adjective", nationality)
    yield Relation("symbol", "National symbol(s)", "national symbol", symbol)
    yield Relation("airports", "Airports", "airports", number_reader("Airports"))
    yield Relation(
        "legislature",
        "Legislative branch",
        "legislative branch legislature name",
        name_reader("Legislative branch", "legislature name"),
    )
    yield Relation("local_name", "Country name", "local short form", name_reader("Country name", "local short form"))
    yield Relation("former_name", "Country name", "former country name", name_reader("Country name", "former"))
    yield Relation("only_neighbor", "Land boundaries", "land boundaries border countries", only_neighbor)
    yield Relation("longest_border", "Land boundaries", "land boundaries border countries", longest_border)
    yield Relation("export_partner", "Exports - partners", "exports partners", export_partner)
