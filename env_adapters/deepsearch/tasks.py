"""The tasks of Deep Search and their splits: generated questions, and those that files or packages bring."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from env_adapters.deepsearch.answers import contains
from env_adapters.deepsearch.corpus import first_passages
from env_adapters.deepsearch.questions import SINGLE, Question, split_questions
from env_adapters.deepsearch.sources import ENV, FANOUTQA, fanoutqa_items, file_items, has_fanoutqa, question_files
from verl_agent.errors import ConfigError
from verl_agent.types import TaskItem

GENERATED: Sequence[str] = ("train", "test", "easy_train", "easy_test")
EASY_CHARS = 100
"""Characters of the first passage in which an easy question finds its answer."""


def split_names() -> Sequence[str]:
    """Return the names of all splits: the generated ones, and one for each installed package or file of questions.

    Raises:
        ConfigError: a file has the name of another split; see `question_files`.
    """
    files = question_files()
    for name in (*GENERATED, FANOUTQA):
        if name in files:
            raise ConfigError(f"{files[name]} has the name of a split of Deep Search, {name!r}. Rename it.")
    return (*GENERATED, *([FANOUTQA] if has_fanoutqa() else []), *files)


def task_items(split: str) -> Sequence[TaskItem]:
    """The tasks of one split, in the same order on every machine.

    Raises:
        ConfigError: a package or a file is missing or wrong.
    """
    if split in GENERATED:
        return generated_items()[split]
    return fanoutqa_items() if split == FANOUTQA else file_items(question_files()[split])


@cache
def generated_items() -> Mapping[str, Sequence[TaskItem]]:
    """The generated questions by split. An easy one takes one search, whose first passage begins with the answer."""
    items: dict[str, list[TaskItem]] = {}
    for split, questions in split_questions().items():
        items[split] = [task_item(question) for question in questions]
        items[f"easy_{split}"] = [task_item(question) for question in questions if easy(question)]
    return items


def easy(question: Question) -> bool:
    """Whether the answer, in its first form, stands at the beginning of the only passage that is needed."""
    shown = first_passages()[question.hops[0].passage].text[:EASY_CHARS]
    return question.kind == SINGLE and contains(shown.rpartition(" ")[0], question.answers[0])


def task_item(question: Question) -> TaskItem:
    """A generated question as a task; its chain holds thought and query of each search, then thought and answer."""
    chain = [[hop.thought, hop.query] for hop in question.hops]
    data: dict[str, Any] = {
        "question": question.text,
        "answers": list(question.answers),
        "match": "exact",
        "chain": [*chain, [question.conclusion, question.answers[0]]],
    }
    return TaskItem(ENV, question.id, data, question.kind)
