"""Reader of the metrics log that verl's `file` logger writes, for complete and for growing files.

Each line is `{"step": int, "data": {name: value}}`, with `"before_saving": true` if the trainer wrote it before the
checkpoint of the step; another line of the step follows then. Values that are not finite numbers are left out; verl
writes NaN as null. Names of metrics are read as visible text.
"""

import json
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verl_agent.visible import one_line

logger = logging.getLogger(__name__)

_VALIDATION = re.compile(
    r"(?P<split>val|test)-(?:core|aux)/(?P<source>.+)/(?P<name>reward|score|acc|success)/mean@(?P<samples>\d+)"
)
_MEASURE = {"reward": "reward", "score": "reward", "acc": "success", "success": "success"}


ENTROPY = ("actor/entropy", "actor/entropy_loss")
"""Names of the policy's entropy in nats per token: measured before the update, or during it if verl makes one pass."""
GAP_PROBABILITY = ("staleness/0/probs_diff", "training/rollout_probs_diff_mean")
"""Names of the mean absolute difference of probabilities between engine and trainer on sampled tokens. The first is
that of tokens which the present weights sampled, verl's is that of all tokens."""
GAP_LOG_PROB = ("actor/ppo_kl",)
"""Name of the mean difference of log-probs, which verl logs if it uses the engine's as old ones (`bypass_mode`)."""


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One line of the log.

    Attributes:
        step: global training step; 0 for a validation before training.
        values: finite numbers by metric name.
        before_saving: True if the step had not ended: its checkpoint and its validation follow.
        not_finite: names of the metrics that are NaN or infinite.
    """

    step: int
    values: dict[str, float]
    before_saving: bool = False
    not_finite: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricsLog:
    """Content of the logs of all starts of a run.

    Attributes:
        by_step: finite metrics by step, in order of steps.
        not_finite: names of the metrics that are NaN or infinite, by step.
        resumed: first training step of each start but the first one.
    """

    by_step: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    not_finite: Mapping[int, Sequence[str]] = field(default_factory=dict)
    resumed: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ValidationScore:
    """Validation result of one data source, averaged over its tasks.

    Attributes:
        source: name of the data source, usually that of the environment.
        measure: `reward` or `success`.
        value: mean over tasks and samples.
    """

    source: str
    measure: str
    value: float


def parse_step(line: str | bytes) -> LoggedStep | None:
    """Return the step that `line` logs, or None if it is not a complete line of the log."""
    try:
        entry = json.loads(line)
    except ValueError:  # no JSON, no UTF-8, or a number of more digits than Python reads
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("step"), int) or not isinstance(entry.get("data"), dict):
        return None
    every: dict[str, object] = {one_line(name): value for name, value in entry["data"].items()}
    numbers = {name: _to_float(value) for name, value in every.items() if isinstance(value, int | float)}
    finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
    not_finite = tuple(name for name, value in every.items() if value is None or name in numbers.keys() - finite)
    return LoggedStep(entry["step"], finite, bool(entry.get("before_saving")), not_finite)


def _to_float(value: float) -> float:
    """Return a number as float; an integer beyond the floats is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def read_metrics(paths: Path | str | Iterable[Path | str], ended: bool = False) -> dict[int, dict[str, float]]:
    """Return metrics by step, in order of steps; see `read_log`."""
    return {step: dict(values) for step, values in read_log(paths, ended).by_step.items()}


def read_log(paths: Path | str | Iterable[Path | str], ended: bool = False) -> MetricsLog:
    """Return the content of the logs of a run.

    A resumed run logs some steps again, and its first line may hold only validation results of the step from which it
    resumed. Therefore the lines of one step are merged, and the last value of each metric is kept.

    Args:
        paths: path of the log, or paths of the logs of all starts of a run, oldest first.
        ended: True to leave out steps that were logged only before they were saved.
    """
    by_step: dict[int, dict[str, float]] = {}
    not_finite: dict[int, tuple[str, ...]] = {}
    resumed: list[int] = []
    for start, path in enumerate([paths] if isinstance(paths, Path | str) else paths):
        first = 0
        for number, line in enumerate(Path(path).read_bytes().splitlines(), start=1):
            logged = parse_step(line)
            if logged is None:
                logger.warning("%s:%d: skipped, not a line of metrics", path, number)
                continue
            if ended and logged.before_saving:
                continue
            by_step.setdefault(logged.step, {}).update(logged.values)
            broken = {name for name in not_finite.pop(logged.step, ()) if name not in logged.values}
            if broken := broken.union(logged.not_finite):
                not_finite[logged.step] = tuple(sorted(broken))
            if not first and "timing_s/step" in logged.values:
                first = logged.step
        resumed += [first] if start and first else []
    return MetricsLog(dict(sorted(by_step.items())), dict(sorted(not_finite.items())), resumed)


def first_logged(by_step: Mapping[int, Mapping[str, float]], *names: str) -> dict[int, float]:
    """Return the values by step of the first of these metrics that was logged; empty without one."""
    for name in names:
        if found := {step: values[name] for step, values in by_step.items() if name in values}:
            return found
    return {}


def validation_scores(values: Mapping[str, float], split: str = "val") -> list[ValidationScore]:
    """Return the validation results among the metrics of a step, in order of their source.

    If a measure is logged for several sample counts, the largest count is used.

    Args:
        split: `val` for results on the development tasks, `test` for those on the test tasks.
    """
    best: dict[tuple[str, str], tuple[int, float]] = {}
    for name, value in values.items():
        match = _VALIDATION.fullmatch(name)
        if match and match["split"] == split:
            key, samples = (match["source"], _MEASURE[match["name"]]), int(match["samples"])
            best[key] = max(best.get(key, (0, value)), (samples, value))
    return [ValidationScore(source, measure, value) for (source, measure), (_, value) in sorted(best.items())]


class MetricsTail:
    """Reader of the lines appended to a log since the last call.

    The file may not exist yet, may end in the middle of a line, and may be emptied by a restart.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._offset = 0

    def read(self) -> list[LoggedStep]:
        """Return the steps of new complete lines, each once, when it has ended."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            if file.seek(0, 2) < self._offset:
                self._offset = 0
            file.seek(self._offset)
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._offset += len(complete)
        parsed = [parse_step(line) for line in complete.splitlines()]
        return [logged for logged in parsed if logged is not None and not logged.before_saving]
