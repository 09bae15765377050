"""Passages of the corpus: from the World Factbook, from Debian's dictionaries, or from a user's file."""

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from env_adapters.deepsearch.factbook import PACKAGE, VERSION, countries
from verl_agent.envs.cache import cache_dir
from verl_agent.errors import ConfigError

MAX_WORDS = 100
"""Maximum number of words in a passage, as in the Wikipedia corpus of Search-R1."""
DICTIONARIES = ("foldoc", "gcide", "jargon")
"""Dictionaries of Debian's packages dict-foldoc, dict-gcide and dict-jargon."""
DICTD = Path("/usr/share/dictd")
"""Folder of installed dictionaries."""
DICTD_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
"""Digits of the numbers in an index of dictd, base 64."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Short text that a search can return.

    Attributes:
        id: identifier, unique in its corpus.
    """

    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """Title and text in Search-R1's format: the title in quotes on the first line."""
        return f'"{self.title}"\n{self.text}'


def parse_contents(passage_id: str, contents: str) -> Passage:
    """Return the passage of Search-R1's `contents`."""
    title, _, text = contents.partition("\n")
    return Passage(passage_id, title.strip().strip('"'), text.strip())


@dataclass(frozen=True, slots=True)
class PassageSource:
    """Source of passages.

    Attributes:
        name: name of the source.
        state: version or hash, which changes with the content.
        read: function that yields the passages, in the same order every time.
    """

    name: str
    state: str
    read: Callable[[], Iterator[Passage]]


def deepsearch_dir() -> Path:
    """Return the cache folder of Deep Search, below `$VERL_AGENT_CACHE` or in the user's cache."""
    return cache_dir() / "deepsearch"


def embedded_sources() -> list[PassageSource]:
    """Return the Factbook and the dictionaries that are installed or were fetched."""
    factbook = PassageSource(PACKAGE, VERSION, factbook_passages)
    files_by_name = ((name, dictionary_files(name)) for name in DICTIONARIES)
    dictionaries = [
        PassageSource(f"dict-{name}", content_fingerprint(files), partial(dictionary_passages, name, *files))
        for name, files in files_by_name
        if files
    ]
    return [factbook, *dictionaries]


def file_source(path: Path) -> PassageSource:
    """Return the source of a user's corpus in Search-R1's format, one `{"id", "contents"}` a line.

    Raises:
        ConfigError: the file does not exist.
    """
    if not path.is_file():
        raise ConfigError(f"the corpus {str(path)!r} does not exist. Name a JSONL file with id and contents.")
    return PassageSource(str(path.resolve()), file_fingerprint(path), partial(file_passages, path))


def factbook_passages() -> Iterator[Passage]:
    """Yield the fields of all countries as passages. Long fields are split, if possible between their parts."""
    for country in countries().values():
        for title, parts in country.fields.items():
            entries = [f"{part}: {text}" if part else text for part, text in parts.items()]
            yield from split_passages(f"factbook/{country.code}/{title}", f"{country.name}: {title}", entries)


def passage_id(code: str, title: str) -> str:
    """Return the id of the first passage of a country's field."""
    return f"factbook/{code}/{title}/0"


@cache
def first_passages() -> Mapping[str, Passage]:
    """Return the first passage of each field of each country, by id."""
    return {passage.id: passage for passage in factbook_passages() if passage.id.endswith("/0")}


def split_passages(key: str, title: str, entries: Sequence[str]) -> Iterator[Passage]:
    """Yield passages of at most `MAX_WORDS` words with all entries; only longer entries are split."""
    texts: list[list[str]] = []
    for entry in entries:
        words = entry.split()
        for start in range(0, len(words), MAX_WORDS):
            chunk = words[start : start + MAX_WORDS]
            if texts and start == 0 and len(texts[-1]) + len(chunk) <= MAX_WORDS:
                texts[-1] = [*texts[-1][:-1], f"{texts[-1][-1]};", *chunk]
            else:
                texts.append(chunk)
    for number, words in enumerate(texts):
        yield Passage(f"{key}/{number}", title, " ".join(words))


def dictionary_files(name: str) -> Sequence[Path]:
    """Return index and data file of a fetched or installed dictionary; empty if it is missing."""
    for folder in (deepsearch_dir() / "dictd", DICTD):
        files = [folder / f"{name}.index", folder / f"{name}.dict.dz"]
        if all(file.is_file() for file in files):
            return files
    return []


def file_fingerprint(file: Path) -> str:
    """Return a hash of path, size and modification time. For large files, whose content takes long to read."""
    stat = file.stat()
    return hashlib.sha256(f"{file.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]


def content_fingerprint(files: Sequence[Path]) -> str:
    """Return a hash of the content of files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def dictionary_passages(name: str, index: Path, data: Path) -> Iterator[Passage]:
    """Yield the entries of a dictionary in dictd's format, in the order of the data file."""
    with gzip.open(data) as file:
        content = file.read()
    entries: dict[tuple[int, int], str] = {}
    for line in index.read_text(encoding="utf-8", errors="replace").splitlines():
        word, offset, length = line.split("\t")[:3]
        if not word.startswith("00-database"):
            entries.setdefault((parse_dictd_number(offset), parse_dictd_number(length)), word)
    for (start, size), word in sorted(entries.items()):
        text = content[start : start + size].decode("utf-8", errors="replace")
        text = " ".join(re.sub(r"[{}]", "", text).split())
        yield from split_passages(f"{name}/{start}", word, [text])


def parse_dictd_number(digits: str) -> int:
    """Return the value of a number in dictd's base-64 notation."""
    value = 0
    for digit in digits:
        value = value * 64 + DICTD_DIGITS.index(digit)
    return value


def file_passages(path: Path) -> Iterator[Passage]:
    """Yield the passages of a user's JSONL file.

    Raises:
        ConfigError: a line is not `{"id", "contents"}`.
    """
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                yield parse_contents(str(row["id"]), row["contents"])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                allowed = r'{"id": ..., "contents": "\"Title\"\ntext"}'
                raise ConfigError(f"{path}, line {number}: each line must be {allowed}. {error!r}") from error
