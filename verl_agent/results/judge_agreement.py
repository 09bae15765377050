"""Agreement of a judge with people's labels: share of equal verdicts and Cohen's kappa, by criterion."""

import csv
import io
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass as strict_dataclass

from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.json_lines import json_lines
from verl_agent.results.folder import PLAY
from verl_agent.results.results import final_records
from verl_agent.results.statistics import Estimate, clustered_wilson_interval
from verl_agent.sections import STRICT, section
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records, record_files
from verl_agent.values import read_text

DRAWS = 2000
"""Resamples of a bootstrap."""
SCORE = "score"
"""Name of the weighted score among the criteria, and the criterion of a label without one."""
FORMS = (
    "Allowed: JSON lines, a JSON array, or a .csv or .tsv file with the header task,label and perhaps criterion, "
    "sample, step, turn."
)
Pair = tuple[bool, bool]
"""Verdict of the judge and of a person: True for passed."""


@strict_dataclass(frozen=True, slots=True, config=STRICT)
class PersonLabel:
    """One line of a file of labels."""

    task: str
    """Id of the task."""
    label: bool | Annotated[float, Field(ge=0, le=1)]
    """Verdict of a person: true, false, or a number from 0 to 1."""
    criterion: str = SCORE
    """Criterion of the rubric; `score` for the weighted score."""
    sample: Annotated[int, Field(ge=0)] = 0
    """Number of the sample, from 0."""
    step: Annotated[int, Field(ge=0)] | None = None
    """Training step; null for the judged episode of task and sample at the highest step."""
    turn: Annotated[int, Field(ge=1)] | None = None
    """Turn, from 1, where the judge grades turns."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement on one criterion.

    Attributes:
        agreement: share of labels with the judge's verdict, with an interval over tasks.
        kappa: Cohen's kappa with a bootstrap interval over tasks; None if all verdicts of both sides are equal.
        judge_passed: number of labels where the judge says passed; `person_passed`: a person.
    """

    criterion: str
    labels: int
    judge_passed: int
    person_passed: int
    agreement: Estimate
    kappa: Estimate | None


def cohens_kappa(pairs: Sequence[Pair]) -> float | None:
    """Return Cohen's kappa (Cohen 1960): (p_o - p_e) / (1 - p_e); None if chance alone agrees always (p_e = 1)."""
    count = len(pairs)
    observed = sum(judge == person for judge, person in pairs) / count
    judge, person = sum(one for one, _ in pairs) / count, sum(one for _, one in pairs) / count
    chance = judge * person + (1 - judge) * (1 - person)
    return None if chance == 1 else (observed - chance) / (1 - chance)


def kappa_interval(pairs_by_task: Mapping[Any, Sequence[Pair]], seed: int = 0) -> Estimate | None:
    """Return kappa with the 95 % interval of a bootstrap that draws tasks with replacement.

    For the lower limit each resample has one label more on which the two sides differ. Otherwise a judge that agrees on
    all labels would have an interval without a width.
    """
    tasks = list(pairs_by_task.values())
    kappa = cohens_kappa([pair for pairs in tasks for pair in pairs])
    if kappa is None:
        return None
    luck, plain, lower = random.Random(seed), list[float](), list[float]()
    for _ in range(DRAWS):
        drawn = [pair for pairs in luck.choices(tasks, k=len(tasks)) for pair in pairs]
        for found, more in ((plain, []), (lower, [(True, False)])):
            value = cohens_kappa([*drawn, *more])
            found += [] if value is None else [value]
    low, high = sorted(lower)[int(0.025 * len(lower))], sorted(plain)[int(0.975 * len(plain)) - 1]
    return Estimate(kappa, min(low, kappa), max(high, kappa), len(tasks))


def read_labels(path: Path) -> list[PersonLabel]:
    """Return the labels of a file: JSON lines, a JSON array, or a table of CSV or TSV with a header.

    Raises:
        ConfigError: the file does not exist, or a line is no label.
    """
    if not path.is_file():
        raise ConfigError(f"--labels {path}: no such file.")
    text = read_text(path)
    try:
        if path.suffix in (".csv", ".tsv"):
            rows = list(_table(text))
        elif text.lstrip()[:1] == "[":
            rows = list(enumerate(json.loads(text), 1))
        else:
            rows = list(json_lines(path))
        labels = [section(f"{path}:{number}: label", PersonLabel, row) for number, row in rows]
    except (ConfigError, ValueError) as error:
        where = "" if str(path) in str(error) else f"{path}: "
        raise ConfigError(f"{where}{error}{'' if 'Allowed: ' in str(error) else f' {FORMS}'}") from error
    if not labels:
        raise ConfigError(f"{path} has no label. {FORMS}")
    return labels


def _table(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and values of each line of a table, whose cells are JSON; an empty cell is left out."""
    lines = io.StringIO(text, newline="")
    first = next(iter(text.splitlines()), "")
    separator = max(",;\t", key=first.count)
    table = csv.DictReader(lines, delimiter=separator)
    if not {"task", "label"} <= {*(table.fieldnames or ())}:
        raise ConfigError(f"the first line {first[:80]!r} is no header with task and label.")
    for row in table:
        if None in row:
            raise ConfigError(f"line {table.line_num} has more cells than the header. Quote cells with {separator!r}.")
        yield table.line_num, {name: _value(name, cell, separator) for name, cell in row.items() if cell}


def _value(name: str, cell: str, separator: str) -> Any:
    if name in ("task", "criterion"):
        return cell
    if separator != ",":
        cell = cell.replace(",", ".")  # a decimal comma
    try:
        return json.loads(cell.lower())
    except ValueError:
        return cell


def compare_labels(
    run: Path, labels: Iterable[PersonLabel], threshold: float = 0.5
) -> tuple[list[Agreement], list[str]]:
    """Return the agreement by criterion, the weighted score first, and a text for each label without a judgement.

    Args:
        run: folder or file with the records of judged episodes.
        threshold: score and label from which an episode has passed, 0 to 1.

    Raises:
        ConfigError: no episode was judged, no label fits one, two labels of one judgement differ, or the folder has
            several evaluations, whose episodes would be mixed.
    """
    nearest = (next((one for one in file.parents if (one / PLAY).is_file()), None) for file in record_files(run))
    if len(played := sorted({str(folder) for folder in nearest if folder})) > 1:
        raise ConfigError(f"{run} has {len(played)} evaluations or runs, such as {played[0]}. Name one of them.")
    records = [record for record in final_records(read_records(run)) if record.get("judgements")]
    if not records:
        raise ConfigError(f"{run} has no episode with a judgement. Play it with a section judge.")
    by_episode: dict[tuple[str, int], list[EpisodeRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda one: (one["step"], one["started_at"])):
        by_episode[record["task"], record["sample"]].append(record)
    known = {SCORE, *(grade["criterion"] for one in records for made in one["judgements"] for grade in made["grades"])}
    pairs: dict[str, dict[str, dict[tuple[Any, ...], Pair]]] = defaultdict(dict)
    given: dict[tuple[Any, ...], float] = {}
    unjudged: dict[str, None] = {}
    for label in labels:
        if label.criterion not in known:
            raise ConfigError(f"a label has the criterion {label.criterion!r}. {did_you_mean(label.criterion, known)}")
        place = f"task {label.task!r}, sample {label.sample}, {label.criterion}"
        found = _judged(by_episode[label.task, label.sample], label)
        if found is None:
            unjudged[place] = None
            continue
        *judgement, score = found
        key = (label.task, label.sample, label.criterion, *judgement)
        if given.setdefault(key, label.label) != label.label:
            raise ConfigError(f"{place} has the labels {given[key]:g} and {label.label:g}. Keep one, or their mean.")
        pairs[label.criterion].setdefault(label.task, {})[key] = (score >= threshold, label.label >= threshold)
    if not pairs:
        raise ConfigError(f"no label fits a judged episode of {run}. The first one without: {next(iter(unjudged))}.")
    order = sorted(pairs, key=lambda name: (name != SCORE, name))
    by_task = {name: {task: list(found.values()) for task, found in pairs[name].items()} for name in order}
    return [_agreement(name, by_task[name]) for name in order], list(unjudged)


def _judged(records: Sequence[EpisodeRecord], label: PersonLabel) -> tuple[int, int, float] | None:
    """Return step, turn and score of the judge for a label; None if it gave none."""
    fitting = [one for one in records if label.step in (None, one["step"])]
    if not fitting:
        return None
    judgements = fitting[-1]["judgements"]
    if label.turn is None and len(judgements) > 1:
        return None
    made = next((one for one in judgements if label.turn in (None, one["turn"] + 1)), None)
    if made is None:
        return None
    scores = {**{grade["criterion"]: grade["score"] for grade in made["grades"]}, SCORE: made["score"]}
    score = scores.get(label.criterion)
    return None if score is None else (fitting[-1]["step"], made["turn"], score)


def _agreement(criterion: str, by_task: Mapping[str, Sequence[Pair]]) -> Agreement:
    pairs = [pair for several in by_task.values() for pair in several]
    equal = {task: [float(judge == person) for judge, person in several] for task, several in by_task.items()}
    return Agreement(
        criterion,
        len(pairs),
        sum(judge for judge, _ in pairs),
        sum(person for _, person in pairs),
        clustered_wilson_interval(equal),
        kappa_interval(by_task),
    )
