"""Task templates, evaluators, and the assignment of entities to training and test."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeVar

from env_adapters.webarena.sites.world import GeneratedWorld

TRAIN, TEST = "train", "test"
TEST_SHARE = 4
"""One in this many entities is reserved for the test."""
PER_TEMPLATE: Mapping[str, int] = {TRAIN: 10, TEST: 6}
"""Most tasks of a template."""

T = TypeVar("T")
Evaluation = dict[str, Any]
Script = Sequence[str]


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft of a task before its conversion to WebArena's format.

    Attributes:
        entity: subject of the task, unique in its template.
        words: values of the placeholders of the intent.
        evaluation: value of WebArena's field `eval`.
        oracle: script that solves the task.
        wrong: scripts that must earn nothing.
    """

    entity: str
    words: Mapping[str, str]
    evaluation: Evaluation
    oracle: Script
    wrong: Sequence[Script] = field(default_factory=list)


Build = Callable[[GeneratedWorld, str], Iterator[Draft]]


@dataclass(frozen=True, slots=True)
class Template:
    """Template of tasks.

    Attributes:
        name: stable and unique name.
        split: split of all its tasks.
        sites: WebArena's names of the sites; the tasks start with one tab for each.
        intent: intent with placeholders, for example `{{product}}`.
        changes: True if its tasks change the state of a site.
        build: function that yields the drafts for the entities of a split.
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
    """Return the split of an entity, by a hash of its name."""
    return TEST if int(sha256(f"side {entity}".encode()).hexdigest(), 16) % TEST_SHARE == 0 else TRAIN


def rank(text: str) -> str:
    """Return a sort key that shuffles, the same on every machine."""
    return sha256(f"rank {text}".encode()).hexdigest()


def answer(*parts: str) -> Evaluation:
    """Return the evaluator for an answer that contains all parts.

    Use it only if an answer cannot contain all possible values, as for prices.
    """
    return string_match({"must_include": list(parts)})


def exactly(text: str) -> Evaluation:
    """Return the evaluator for an answer that is exactly this text."""
    return string_match({"exact_match": text})


def string_match(reference: Mapping[str, Any]) -> Evaluation:
    """Return WebArena's evaluator of answers."""
    return {
        "eval_types": ["string_match"],
        "reference_answers": dict(reference),
        "reference_url": "",
        "program_html": [],
    }


def page(url: str) -> Evaluation:
    """Return the evaluator of the URL of the last page."""
    return {
        "eval_types": ["url_match"],
        "reference_answers": None,
        "reference_url": url,
        "program_html": [],
        "url_note": "GOLD in PRED",
    }


def state(*checks: Mapping[str, Any]) -> Evaluation:
    """Return the evaluator of the content of pages."""
    return {
        "eval_types": ["program_html"],
        "reference_answers": None,
        "reference_url": "",
        "program_html": [dict(check) for check in checks],
    }


def shows(url: str, locator: str, *parts: str) -> Mapping[str, Any]:
    """Return the check that a page, or an element of it, contains all parts."""
    return {"url": url, "locator": locator, "required_contents": {"must_include": list(parts)}}


def equals(url: str, locator: str, text: str) -> Mapping[str, Any]:
    """Return the check that an element of a page is exactly this text."""
    return {"url": url, "locator": locator, "required_contents": {"exact_match": text}}


def stop(text: str = "") -> str:
    """Return the action that ends an episode."""
    return f"stop [{text}]"


def all_of(candidates: Iterable[str]) -> Script:
    """Return the wrong script whose answer lists all possible values."""
    return [stop(", ".join(sorted(set(candidates))))]


def neighbours(listed: Sequence[T]) -> list[tuple[T, T]]:
    """Return pairs of each entity with another one."""
    return list(zip(listed, [*listed[1:], listed[0]], strict=True)) if len(listed) > 1 else []
