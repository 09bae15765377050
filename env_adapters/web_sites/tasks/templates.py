"""Task templates, evaluators, and the assignment of entities to training and test."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeVar

from env_adapters.web_sites.world import GeneratedWorld

TRAIN, TEST = "train", "test"
TEST_SHARE = 4
"""One in this many entities is reserved for the test."""
PER_TEMPLATE: Mapping[str, int] = {TRAIN: 10, TEST: 6}
"""Most tasks of a template."""

T = TypeVar("T")
Evaluation = dict[str, Any]
Script = Sequence[str]
Part = Mapping[str, str]
"""Part of an answer: its kind (see `grading/strict.py`) and its text."""


@dataclass(frozen=True, slots=True)
class TaskDraft:
    """Draft of a task before its conversion to WebArena's format.

    Attributes:
        entity: subject of the task, unique in its template.
        words: values of the placeholders of the intent.
        evaluation: value of WebArena's field `eval`.
        oracle: script that solves the task.
        wrong: scripts that must earn nothing, by the requirement that they violate.
        corrected: script that makes a mistake, corrects it and solves the task; None to look at another subject first.
    """

    entity: str
    words: Mapping[str, str]
    evaluation: Evaluation
    oracle: Script
    wrong: Mapping[str, Script] = field(default_factory=dict)
    corrected: Script | None = None


Build = Callable[[GeneratedWorld, str], Iterator[TaskDraft]]


@dataclass(frozen=True, slots=True)
class Template:
    """Template of tasks.

    Attributes:
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
    """Register a generator of drafts as a template, whose name is the generator's.

    Args:
        sites: WebArena's names of the sites, separated by spaces.
    """

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


def text_part(said: str) -> Part:
    """Return a part of an answer that is a name, a title or another text."""
    return {"kind": "text", "text": said}


def number(count: int | str) -> Part:
    """Return a part of an answer that is a whole number."""
    return {"kind": "number", "text": str(count)}


def money(price: str) -> Part:
    """Return a part of an answer that is an amount in dollars."""
    return {"kind": "money", "text": price}


def grams(weight: int) -> Part:
    """Return a part of an answer that is a weight in grams."""
    return {"kind": "grams", "text": str(weight)}


def time_of_day(clock: str) -> Part:
    """Return a part of an answer that is a time of day, for example `19:30`."""
    return {"kind": "time", "text": clock}


def question_draft(entity: str, words: Mapping[str, str], steps: Script, *parts: Part) -> TaskDraft:
    """Return the draft of a task whose answer consists of these parts; `steps` find it."""
    said = stop(", ".join(part["text"] for part in parts))
    return TaskDraft(entity, words, evaluation_of("single_answer", list(parts)), [*steps, said])


def visit(entity: str, words: Mapping[str, str], steps: Script, *urls: str, ignored: Sequence[str] = ()) -> TaskDraft:
    """Return the draft of a task to open a page.

    Args:
        ignored: names of parameters of the URL that do not matter.
    """
    reference = {"urls": list(urls), "ignored": list(ignored)}
    return TaskDraft(entity, words, evaluation_of("final_page", reference), [*steps, stop()])


def evaluation_of(kind: str, reference: object) -> Evaluation:
    """Return the field `eval` of a task with one strict evaluator."""
    return {"eval_types": [kind], "reference_answers": None, "reference_url": "", "program_html": [], kind: reference}


def expect_changes(*expected: Mapping[str, Any]) -> Evaluation:
    """Return the evaluator of the complete change of the sites."""
    return evaluation_of("state_change", list(expected))


def added(record: str, **values: object) -> Mapping[str, Any]:
    """Return the expected addition of a record with all its values."""
    return {"change": "added", "record": record, "key": "", "values": cell_texts(values)}


def changed(record: str, key: object, **values: object) -> Mapping[str, Any]:
    """Return the expected change of a record to these values."""
    return {"change": "changed", "record": record, "key": str(key), "values": cell_texts(values)}


def cell_texts(values: Mapping[str, object]) -> dict[str, str]:
    """Return values as texts with single spaces."""
    return {name: " ".join(str(value).split()) for name, value in values.items()}


def stop(text: str = "") -> str:
    """Return the action that ends an episode."""
    return f"stop [{text}]"


def overwrite(target: str, said: str) -> list[str]:
    """Return the script that replaces the text of a field, for example of `textbox "Title:"`; typing only appends."""
    return [f"click [{target}]", "press [Control+a]", "press [Backspace]", f"type [{target}] [{said}] [0]"]


def neighbours(listed: Sequence[T]) -> list[tuple[T, T]]:
    """Return pairs of each entity with another one."""
    return list(zip(listed, [*listed[1:], listed[0]], strict=True)) if len(listed) > 1 else []
