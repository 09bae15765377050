"""Read the metrics JSONL that verl's `file` logger writes, whole or while it grows.

Each line is `{"step": int, "data": {name: value}}`. What is not a finite number is left out: verl
writes NaN as null.
"""

import json
import logging
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

_VALIDATION = re.compile(r"val-(?:core|aux)/(?P<source>.+)/(?P<name>reward|score|acc|success)/mean@(?P<samples>\d+)")
_MEASURE = {"reward": "reward", "score": "reward", "acc": "success", "success": "success"}


ENTROPY = ("actor/entropy", "actor/entropy_loss")
"""The policy's entropy in nats a token, measured before the update, or in it where verl makes no other pass."""
GAP = ("training/rollout_probs_diff_mean", "actor/ppo_kl")
"""Engine against trainer on the sampled tokens: mean absolute difference of probabilities; or, where verl takes the
engine's log-probs for the old ones (`bypass_mode`) and updates once a step, the mean difference of log-probs."""


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One line of the log.

    Attributes:
        step: global training step; 0 for a validation before training.
        values: finite numbers by metric name.
    """

    step: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class ValidationScore:
    """A result on the validation set of one data source, averaged over its items.

    Attributes:
        source: data source, usually the name of the environment.
        measure: `reward` or `success`.
        value: the mean over items and samples.
    """

    source: str
    measure: str
    value: float


def parse_line(line: str | bytes) -> LoggedStep | None:
    """The step that `line` logs, or None if it is no complete line of the log."""
    try:
        entry = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("step"), int) or not isinstance(entry.get("data"), dict):
        return None
    numbers = {name: value for name, value in entry["data"].items() if isinstance(value, int | float)}
    return LoggedStep(entry["step"], {name: float(v) for name, v in numbers.items() if math.isfinite(v)})


def read_metrics(paths: Path | str | Iterable[Path | str]) -> dict[int, dict[str, float]]:
    """Metrics by step, in order of steps.

    A restarted run logs steps again, and its first line may hold only validation results of the
    step that it resumed from. So lines of one step are merged and the last value of each metric is
    kept.

    Args:
        paths: the log, or the logs of a run and its restarts from oldest to newest.
    """
    by_step: dict[int, dict[str, float]] = {}
    for path in [paths] if isinstance(paths, Path | str) else paths:
        for number, line in enumerate(Path(path).read_bytes().splitlines(), start=1):
            logged = parse_line(line)
            if logged is None:
                logger.warning("%s:%d: left out, not a line of metrics", path, number)
                continue
            by_step.setdefault(logged.step, {}).update(logged.values)
    return dict(sorted(by_step.items()))


def validation_scores(values: dict[str, float]) -> list[ValidationScore]:
    """Validation results among the metrics of a step, in order of their source.

    Of several sample counts logged for the same measure, the largest counts.
    """
    best: dict[tuple[str, str], tuple[int, float]] = {}
    for name, value in values.items():
        if found := _VALIDATION.fullmatch(name):
            key, samples = (found["source"], _MEASURE[found["name"]]), int(found["samples"])
            best[key] = max(best.get(key, (0, value)), (samples, value))
    return [ValidationScore(source, measure, value) for (source, measure), (_, value) in sorted(best.items())]


class MetricsTail:
    """Reads what was appended to a log since the last call.

    The file may not exist yet, may end in the middle of a line, and may be emptied by a restart.

    Args:
        path: the log.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._offset = 0

    def read(self) -> list[LoggedStep]:
        """The complete lines that are new."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            if file.seek(0, 2) < self._offset:
                self._offset = 0
            file.seek(self._offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        parsed = [parse_line(line) for line in whole.splitlines()]
        return [logged for logged in parsed if logged is not None]
