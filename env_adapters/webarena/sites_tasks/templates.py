"""What a task template is, what judges a task, and how entities are shared out between training and test."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeVar

from env_adapters.webarena.sites.world import GeneratedWorld

TRAIN, TEST = "train", "test"
TEST_SHARE = 4
"""One entity in this many is for the test only."""
PER_TEMPLATE: Mapping[str, int] = {TRAIN: 10, TEST: 6}
"""Most tasks of a template."""

T = TypeVar("T")
Evaluation = dict[str, Any]
Script = Sequence[str]


@dataclass(frozen=True, slots=True)
class Draft:
    """A task before it is written in WebArena's form.

    Attributes:
        entity: what it is about, unique in its template.
        words: what fills the places of the intent.
        evaluation: WebArena's `eval`.
        oracle: a script that solves it.
        wrong: endings that must earn nothing.
    """

    entity: str
    words: Mapping[str, str]
    evaluation: Evaluation
    oracle: Script
    wrong: Sequence[Script] = field(default_factory=list)


Build = Callable[[GeneratedWorld, str], Iterator[Draft]]


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of task.

    Attributes:
        name: stable, unique.
        split: all its tasks are in this one.
        sites: WebArena's names; the start page is that of the first, for several a tab each.
        intent: with places such as `{{product}}`.
        changes: its tasks change the state of a site.
        build: yields its drafts for the entities of a split.
    """

    name: str
    split: str
    sites: Sequence[str]
    intent: str
    changes: bool
    build: Build


TEMPLATES: list[Template] = []


def template(split: str, sites: str, intent: str, changes: bool = False) -> Callable[[Build], Build]:
    """Register a generator of drafts as a template named after it; `sites` are separated by spaces."""

    def register(build: Build) -> Build:
        TEMPLATES.append(Template(build.__name__, split, sites.split(), intent, changes, build))
        return build

    return register


def side(entity: str) -> str:
    """The split that an entity is for, by a hash of its name."""
    return TEST if int(sha256(f"side {entity}".encode()).hexdigest(), 16) % TEST_SHARE == 0 else TRAIN


def rank(text: str) -> str:
    """A key that shuffles, the same everywhere."""
    return sha256(f"rank {text}".encode()).hexdigest()


def answer(*parts: str) -> Evaluation:
    """The answer holds all parts; for those that are one of so many that nobody names them all."""
    return string_match({"must_include": list(parts)})


def exactly(text: str) -> Evaluation:
    """The answer is this."""
    return string_match({"exact_match": text})


def string_match(reference: Mapping[str, Any]) -> Evaluation:
    """WebArena's evaluator of answers."""
    return {
        "eval_types": ["string_match"],
        "reference_answers": dict(reference),
        "reference_url": "",
        "program_html": [],
    }


def page(url: str) -> Evaluation:
    """The episode ends on this page."""
    return {
        "eval_types": ["url_match"],
        "reference_answers": None,
        "reference_url": url,
        "program_html": [],
        "url_note": "GOLD in PRED",
    }


def state(*checks: Mapping[str, Any]) -> Evaluation:
    """The sites show all this at the end."""
    return {
        "eval_types": ["program_html"],
        "reference_answers": None,
        "reference_url": "",
        "program_html": [dict(check) for check in checks],
    }


def shows(url: str, locator: str, *parts: str) -> Mapping[str, Any]:
    """A page, or an element of it, holds all parts."""
    return {"url": url, "locator": locator, "required_contents": {"must_include": list(parts)}}


def equals(url: str, locator: str, text: str) -> Mapping[str, Any]:
    """An element of a page is this."""
    return {"url": url, "locator": locator, "required_contents": {"exact_match": text}}


def stop(text: str = "") -> str:
    """The action that ends an episode."""
    return f"stop [{text}]"


def all_of(candidates: Iterable[str]) -> Script:
    """An ending that names them all instead of choosing one: where few are possible, it must earn nothing."""
    return [stop(", ".join(sorted(set(candidates))))]


def neighbours(listed: Sequence[T]) -> list[tuple[T, T]]:
    """Each one with another."""
    return list(zip(listed, [*listed[1:], listed[0]], strict=True)) if len(listed) > 1 else []
