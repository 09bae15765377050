"""Charts of any logged metric, beside those that every run has."""

from collections.abc import Iterable, Sequence

from verl_agent.trace.metrics import METRICS
from verl_agent.trace.panels import Curve, Panel, PanelKind
from verl_agent.viewer.charts import RunData

WATCHED = (
    "actor/grad_norm",
    "actor/ppo_kl",
    "actor/pg_clipfrac",
    "episode/tokens_mean",
    "staleness/mean",
    "train/loss",
    "val/loss",
    "train/margin",
    "train/grad_norm",
)
"""Metrics that are shown unless others are chosen: of the update, lengths and ages; of offline training the loss."""
MOST = 24
"""Charts of metrics on one page."""
_MEANINGS = {one.name: f"{one.meaning} ({one.unit})" for one in METRICS}


def metric_names(runs: Iterable[RunData]) -> list[str]:
    """Return the names of all metrics that runs have logged, in order."""
    return sorted({name for run in runs for values in run.logged.values() for name in values})


def watched(runs: Sequence[RunData]) -> list[str]:
    """Return the metrics of `WATCHED` that one of the runs has logged with a value other than 0."""
    return [name for name in WATCHED if any(values.get(name) for run in runs for values in run.logged.values())]


def metric_panels(run: RunData, names: Sequence[str]) -> list[Panel]:
    """Return a chart for each metric that the run has logged, with its meaning where it is one of this package."""
    found = []
    for name in names[:MOST]:
        values = {step: logged[name] for step, logged in run.logged.items() if name in logged}
        if values:
            meaning = _MEANINGS.get(name, "")
            found.append(
                Panel(PanelKind(name, meaning and f"{meaning[0].upper()}{meaning[1:]}."), [Curve(name, values)])
            )
    return found
