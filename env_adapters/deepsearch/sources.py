"""Questions of users' files (for example, the paper's seven data sets) and of the package FanOutQA."""

import importlib.util
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from env_adapters.deepsearch.corpus import deepsearch_dir
from env_adapters.deepsearch.index import import_library
from verl_agent.envs.tasks import stable_hash
from verl_agent.errors import ConfigError
from verl_agent.types import TaskItem

FOLDER_VARIABLE = "DEEPSEARCH_QUESTIONS"
"""Environment variable with the folder of question files."""
SUFFIXES = (".parquet", ".jsonl")
COLUMNS = ("question", "golden_answers", "data_source")
FANOUTQA = "fanoutqa"
ENV = "deepsearch"


def question_files() -> Mapping[str, Path]:
    """Return the question files by split; the name of a `.parquet` or `.jsonl` file is the name of its split.

    Raises:
        ConfigError: the folder of `$DEEPSEARCH_QUESTIONS` does not exist, or two files have the same name.
    """
    chosen = os.environ.get(FOLDER_VARIABLE)
    folder = Path(chosen) if chosen else deepsearch_dir() / "questions"
    if chosen and not folder.is_dir():
        raise ConfigError(f"{FOLDER_VARIABLE}={chosen!r} is not a folder. Name one with .parquet or .jsonl files.")
    files = sorted(file for file in folder.glob("*") if file.suffix in SUFFIXES) if folder.is_dir() else []
    by_name = {file.stem: file for file in files}
    if len(by_name) < len(files):
        raise ConfigError(f"{folder} holds two files with the same name, as .parquet and as .jsonl. Keep one of them.")
    return by_name


def file_items(file: Path) -> Sequence[TaskItem]:
    """Return the questions of a file in its order. Duplicates are merged into one item with all their answers.

    Raises:
        ConfigError: a row is not `{question, golden_answers}`.
    """
    return _file_items(file, file.stat().st_mtime_ns)


@cache
def _file_items(file: Path, modified_ns: int) -> Sequence[TaskItem]:
    known: dict[str, tuple[str, str, dict[str, None]]] = {}
    for number, row in enumerate(read_rows(file), 1):
        question, answers = row.get("question"), row.get("golden_answers")
        answers = answers if isinstance(answers, list) and all(isinstance(text, str) for text in answers) else []
        if not isinstance(question, str) or not question.strip() or not answers:
            raise ConfigError(
                f"{file}, row {number}: needs `question`, a text, and `golden_answers`, a list of texts; "
                f"got {str(row)[:200]}"
            )
        name = str(row.get("data_source") or re.sub(r"[_-](train|dev|test)$", "", file.stem))
        text = " ".join(question.split())
        item_id = f"{name}:{stable_hash(text)[:12]}"
        known.setdefault(item_id, (name, text, {}))[2].update(dict.fromkeys(answers))
    return [
        TaskItem(ENV, item_id, {"question": text, "answers": list(answers), "match": "exact"}, name)
        for item_id, (name, text, answers) in known.items()
    ]


def read_rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet or JSONL file.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        if file.suffix == ".parquet":
            parquet = import_library("pyarrow.parquet", "pyarrow").ParquetFile(file)
            columns = [name for name in COLUMNS if name in parquet.schema_arrow.names]
            for batch in parquet.iter_batches(columns=columns):
                yield from batch.to_pylist()
        else:
            with file.open(encoding="utf-8") as lines:
                for line in lines:
                    row = json.loads(line)
                    yield row if isinstance(row, dict) else {"question": None, "row": row}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error


def has_fanoutqa() -> bool:
    """Return True if the package `fanoutqa` is installed."""
    return importlib.util.find_spec(FANOUTQA) is not None


@cache
def fanoutqa_items() -> Sequence[TaskItem]:
    """Return the 310 questions of FanOutQA that have reference answers. An answer must contain every part of them.

    Raises:
        ConfigError: the package is not installed, or its data file is missing.
    """
    spec = importlib.util.find_spec(FANOUTQA)
    if spec is None or spec.origin is None:
        raise ConfigError("the split 'fanoutqa' needs the package: pip install --no-deps fanoutqa==1.1.1.")
    file = Path(spec.origin).with_name("data") / "fanout-final-dev.json"
    if not file.is_file():
        raise ConfigError(f"{file} does not exist. Install fanoutqa 1.1.1 again.")
    return [
        TaskItem(
            ENV,
            f"{FANOUTQA}:{row['id']}",
            {"question": row["question"], "answers": list(dict.fromkeys(answer_parts(row["answer"]))), "match": "all"},
            FANOUTQA,
        )
        for row in json.loads(file.read_text(encoding="utf-8"))
    ]


def answer_parts(answer: Any) -> Iterator[str]:
    """Yield every text, number and truth value (`yes`, `no`) of a nested answer, including the keys of mappings."""
    if isinstance(answer, dict):
        for key, value in answer.items():
            yield str(key)
            yield from answer_parts(value)
    elif isinstance(answer, list):
        for entry in answer:
            yield from answer_parts(entry)
    elif isinstance(answer, bool):
        yield "yes" if answer else "no"
    else:
        yield str(answer)
