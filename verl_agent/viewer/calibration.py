"""Chart of the run page: values that the critic predicted, against the returns that followed."""

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from nicegui import ui

from verl_agent.errors import ConfigError, counted
from verl_agent.trace.panels import BLUE, GREY, ORANGE
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.token_files import TurnValue, column_names, token_files
from verl_agent.viewer.calibration_values import Calibration, calibrate, predictions, read_values
from verl_agent.viewer.charts import add_chart, axis_of
from verl_agent.viewer.elements import show_error
from verl_agent.viewer.links import here
from verl_agent.viewer.recorded_tokens import last_attempt
from verl_agent.viewer.state import OpenedSource, in_thread

Values = dict[tuple[str, int], dict[int, TurnValue]]


async def add_calibration(opened: OpenedSource, chosen: str) -> None:
    """Add the chart, if the run has a critic and recorded token data.

    Args:
        chosen: step of the URL's parameter `critic`; empty for the latest recorded one.
    """
    files = {_step(file): file for file in token_files(opened.source.folder)}
    steps = sorted(files)
    if opened.source.kind != "training" or not files or not _has_critic(files[steps[-1]]):
        return
    if chosen and chosen not in map(str, steps):
        show_error(ConfigError(f"critic={chosen!r} is not a step with values. Allowed: {', '.join(map(str, steps))}."))
        return
    step = int(chosen) if chosen else steps[-1]
    try:
        found = await in_thread(lambda: _calibrate(opened, files[step], step))
    except (OSError, ConfigError) as error:
        show_error(ConfigError(str(error)))
        return
    title = f"Critic: predicted value against return (step {step})"
    note = "On the dashed line the critic is right; points above it are returns that it underrates."
    add_chart(title, calibration_chart(found), note)
    with ui.row().classes("items-center gap-4"):
        ui.label(describe_calibration(found))
        ui.select(
            steps,
            value=step,
            label="critic at step",
            on_change=lambda event: ui.navigate.to(here(critic=event.value)),
        ).classes("w-32")


def _calibrate(opened: OpenedSource, file: Path, step: int) -> Calibration:
    values = _values(file, file.stat().st_mtime_ns)
    find = partial(_find, opened, step)
    return calibrate(predictions(opened.source.folder, values, find))


def describe_calibration(found: Calibration) -> str:
    """Return bias and explained variance in one sentence."""
    variance = found.explained_variance
    explained = "all returns are equal" if variance is None else f"explained variance {variance:.2f}"
    side = "above" if found.bias > 0 else "below"
    return (
        f"{counted(found.turns, 'turn')} of {counted(found.groups, 'task')}: {explained}; predictions are "
        f"{abs(found.bias):.3g} {side} the "
        "return on average."
    )


def calibration_chart(found: Calibration) -> dict[str, Any]:
    """Return the options of the chart: a point for each bin, its interval, and the line of a perfect critic."""
    ends = [value for one in found.bins for value in (one.value, one.realized.mean)]
    least, most = min(ends), max(ends)
    with_width = [one for one in found.bins if one.realized.tasks > 1]
    intervals = [[[one.value, one.realized.low], [one.value, one.realized.high], [None, None]] for one in with_width]
    line = {"type": "line", "symbol": "none"}
    return {
        "grid": {"left": 60, "right": 16, "top": 12, "bottom": 60},
        "xAxis": axis_of("predicted value", scale=True),
        "yAxis": axis_of("return that followed", scale=True) | {"nameGap": 40},
        "series": [
            {
                "name": "tenths of the turns",
                "type": "scatter",
                "symbolSize": 9,
                "color": BLUE,
                "data": [[round(one.value, 4), round(one.realized.mean, 4)] for one in found.bins],
            },
            {**line, "name": "95 % interval", "color": ORANGE, "data": [point for part in intervals for point in part]},
            {
                **line,
                "name": "perfect",
                "color": GREY,
                "lineStyle": {"type": "dashed"},
                "data": [[least, least], [most, most]],
            },
        ],
    }


def _step(file: Path) -> int:
    number = file.stem.rpartition("_")[2]
    return int(number) if number.isdecimal() else -1


def _find(opened: OpenedSource, step: int, group: str, sample: int) -> EpisodeRecord | None:
    row = last_attempt(opened, step, group, sample)
    try:
        return None if row is None else opened.index.read(row["id"])
    except ConfigError:  # the file was replaced; the next update of the index sees it
        return None


def _has_critic(file: Path) -> bool:
    try:
        return "values" in column_names(file)
    except (OSError, ValueError):
        return False


@lru_cache(maxsize=16)
def _values(file: Path, changed_at: int) -> Values:
    return read_values(file)
