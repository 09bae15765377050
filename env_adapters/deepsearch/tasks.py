"""Tasks of Deep Search by split: generated questions, and questions of files and packages."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from env_adapters.deepsearch.answers import contains
from env_adapters.deepsearch.corpus import first_passages
from env_adapters.deepsearch.questions import SINGLE, GeneratedQuestion, split_questions
from env_adapters.deepsearch.sources import ENV, FANOUTQA, fanoutqa_items, file_items, has_fanoutqa, question_files
from verl_agent.errors import ConfigError
from verl_agent.types import TaskItem

GENERATED: Sequence[str] = ("train", "test", "easy_train", "easy_test")
EASY_CHARS = 100
"""Number of characters at the start of the first passage that contain the answer of an easy question."""


def split_names() -> Sequence[str]:
    """Return the names of all splits: the generated ones, and one for each installed package or file of questions.

    Raises:
        ConfigError: a file has the name of another split; see `question_files`.
    """
    files = question_files()
    for name in (*GENERATED, FANOUTQA):
        if name in files:
            raise ConfigError(f"{files[name]} has the name of a split of Deep Search, {name!r}. Rename the file.")
    return (*GENERATED, *([FANOUTQA] if has_fanoutqa() else []), *files)


def task_items(split: str) -> Sequence[TaskItem]:
    """Return the tasks of one split, in the same order on every machine.

    Raises:
        ConfigError: a package or a file is missing or invalid.
    """
    if split in GENERATED:
        return generated_items()[split]
    return fanoutqa_items() if split == FANOUTQA else file_items(question_files()[split])


@cache
def generated_items() -> Mapping[str, Sequence[TaskItem]]:
    """Return the generated questions by split."""
    items: dict[str, list[TaskItem]] = {}
    for split, questions in split_questions().items():
        items[split] = [question_item(question) for question in questions]
        items[f"easy_{split}"] = [question_item(question) for question in questions if is_easy(question)]
    return items


def is_easy(question: GeneratedQuestion) -> bool:
    """Return True if one search suffices and its first passage starts with the preferred form of the answer."""
    shown = first_passages()[question.hops[0].passage].text[:EASY_CHARS]
    return question.kind == SINGLE and contains(shown.rpartition(" ")[0], question.answers[0])


def question_item(question: GeneratedQuestion) -> TaskItem:
    """Return a generated question as a task item.

    `data["chain"]` holds `[thought, query]` for each search, then `[thought, answer]`.
    """
    chain = [[hop.thought, hop.query] for hop in question.hops]
    data: dict[str, Any] = {
        "question": question.text,
        "answers": list(question.answers),
        "match": "exact",
        "chain": [*chain, [question.conclusion, question.answers[0]]],
    }
    return TaskItem(ENV, question.id, data, question.kind)
