"""Summary, findings and curves of a run, alone or over other opened runs; a click on a point shows its episodes."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from nicegui import ui
from nicegui.events import EChartPointClickEventArguments
from starlette.datastructures import QueryParams
from starlette.requests import Request

from verl_agent.config.keys import leaves
from verl_agent.errors import ConfigError, counted, did_you_mean
from verl_agent.results.folder import REPORT, read_report
from verl_agent.viewer.calibration import add_calibration
from verl_agent.viewer.charts import add_chart, chart, with_look
from verl_agent.viewer.diagnosis import find_in_run, show_findings
from verl_agent.viewer.layout import Page, page_part
from verl_agent.viewer.links import here, link_to, run_path
from verl_agent.viewer.live import latest_log, read_now, read_tail
from verl_agent.viewer.overview import changed_settings, read_overview, status_of
from verl_agent.viewer.pages.home import show_overview, show_status
from verl_agent.viewer.pages.listing import whole_number
from verl_agent.viewer.pages.table import add_text_table
from verl_agent.viewer.run_data import (
    AXES,
    Axis,
    RunData,
    describe_panel,
    fetch_run,
    metric_names,
    metric_panels,
    panels,
    watched,
)
from verl_agent.viewer.state import OpenedSource, ViewerState, in_thread
from verl_agent.viewer.text import short_name
from verl_agent.visible import make_visible

FIELD = "dense outlined"
"""Look of a field."""
NOW_S = 3.0
"""Seconds between two polls of a run that is running."""
SMOOTH = (1, 5, 10, 25)
"""Numbers of steps of the running mean that a reader may choose."""


async def show(page: Page, opened: OpenedSource, request: Request) -> None:
    """Show the page `/run/<key>`; its parameters are `x`, `smooth`, `with`, `metric` and `critic`."""
    query = request.query_params
    others = other_runs(page.state, query)
    axis = _axis(query.get("x", "step"))
    run = await fetch_run(opened)
    smooth = whole_number("smooth", query.get("smooth", str(run.usual_window)), 1)
    await _summary(page, opened)
    await page.show(opened, partial(find_in_run, opened), partial(show_findings, opened))
    with page_part(ui.column().classes("w-full")):
        await _evaluation(opened)
    if len({at.step for at in run.steps} | set(run.logged)) > 1 or others:
        _choices(list(page.state.opened), opened, others, axis, smooth)
    await _metrics([opened, *others], query.getlist("metric"))
    await _charts(page, [opened, *others], axis, smooth, query.getlist("metric"))
    _log(page, opened)
    await add_calibration(opened, query.get("critic", ""))


async def _summary(page: Page, opened: OpenedSource) -> None:
    """Show what was trained, the result, what happens now, and the settings that differ from the base recipe."""
    seen: object = None

    async def draw() -> None:
        nonlocal seen
        overview = await opened.fetch("overview", partial(read_overview, opened))
        status = await in_thread(partial(status_of, opened))
        now = await in_thread(lambda: read_now(opened, datetime.now(UTC))) if status == "running" else {}
        if (overview, status, now) == seen:
            return
        seen = (overview, status, now)
        summary.clear()
        with summary:
            with ui.row().classes("items-baseline gap-3"):
                show_status(status)
            show_overview(overview)
            with ui.row().classes("gap-x-4 gap-y-1"):
                for name, value in now.items():
                    ui.label(f"{name} {value}".strip()).classes("accent")

    with ui.card().classes("w-full gap-2"):
        summary = ui.column().classes("w-full gap-2")
        await draw()
        page.every(NOW_S, draw)
        changed = await in_thread(partial(changed_settings, opened))
        if changed:
            with ui.expansion(f"{counted(len(changed), 'setting')} other than the base recipe's").props("dense"):
                add_text_table(["setting", "base", "this run"], changed)


async def _metrics(opened: Sequence[OpenedSource], metrics: list[str]) -> None:
    """Show a field in which any logged metric is chosen; nothing for a source without metrics."""
    runs = [await fetch_run(one) for one in opened]
    names = metric_names(runs)
    if not names:
        return

    def choose() -> None:
        chosen = [] if field.value == watched(runs) else field.value
        if chosen != metrics:
            ui.navigate.to(here(metric=chosen))

    shown = [name for name in metrics or watched(runs) if name in names]
    title = f"charts of {len(names)} logged metrics"
    field = ui.select(names, value=shown, label=title, multiple=True, with_input=True)
    field.props(f"{FIELD} use-chips").classes("w-full").on("popupHide", choose)


def _log(page: Page, opened: OpenedSource) -> None:
    """Show the end of the log and its first error, read again while they are open."""
    if latest_log(opened.source.folder) is None:
        return
    with ui.expansion("Log").props("dense").classes("w-full") as box:
        error, text = ui.label().classes("mono bad-text"), ui.label().classes("mono sunken w-full")
        text.style("max-height: 60vh; overflow: auto; white-space: pre-wrap; overflow-wrap: anywhere")

    async def draw() -> None:
        log = latest_log(opened.source.folder)
        if not box.value or log is None:
            return
        first, tail = await in_thread(partial(read_tail, log))
        error.text = f"First error: {make_visible(first)}" if first else ""
        text.text = make_visible(tail)

    box.on_value_change(draw)
    page.every(NOW_S, draw)


def other_runs(state: ViewerState, query: QueryParams) -> list[OpenedSource]:
    """Return the runs that are drawn too, one for each parameter `with`.

    Raises:
        ConfigError: a run is not open.
    """
    return [state.get(key) for key in query.getlist("with") if key]


def _axis(value: str) -> Axis:
    for axis in AXES:
        if axis == value:
            return axis
    raise ConfigError(f"x={value!r} is not allowed. {did_you_mean(value, AXES)}")


def _choices(keys: list[str], opened: OpenedSource, others: list[OpenedSource], axis: Axis, smooth: int) -> None:
    smoothing = {number: "none" if number == 1 else f"{number} steps" for number in sorted({*SMOOTH, smooth})}

    def go(name: str) -> Callable[[Any], None]:
        return lambda event: ui.navigate.to(here(**{name: event.value}))

    with ui.element("div").classes("fields"):
        ui.select(list(AXES), value=axis, label="x axis", on_change=go("x")).props(FIELD)
        ui.select(smoothing, value=smooth, label="running mean", on_change=go("smooth")).props(FIELD)
        if names := [key for key in keys if key != opened.key]:
            chosen = [other.key for other in others]
            ui.select(names, value=chosen, label="with runs", multiple=True, on_change=go("with")).props(FIELD)
        step = ui.number("episodes of step", min=0, precision=0).props(FIELD)
        step.on("keydown.enter", lambda: ui.navigate.to(link_to(run_path(opened, "/episodes"), {"step": step.value})))


async def _evaluation(opened: OpenedSource) -> None:
    """Show the results of an evaluation by category, and how it was played; nothing for other sources."""
    if not (opened.source.folder / REPORT).is_file():
        return
    report = await opened.fetch("report", lambda: read_report(opened.source.folder))
    add_text_table(*result_rows(report["results"]))
    with ui.expansion("How it was played").props("dense").classes("w-full"):
        facts = leaves({**report["config"], **report["provenance"]})
        add_text_table(["setting", "value"], [[key, str(value)] for key, value in facts if value is not None])


def result_rows(results: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the cells of the results of an evaluation, without columns that no row fills."""
    several = sorted({int(k) for row in results for k in row["pass_at"] if int(k) > 1})
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "category": lambda row: short_name(row["category"]),
        "tasks": lambda row: str(row["tasks"]),
        "episodes": lambda row: str(row["episodes"]),
        "success": partial(_estimate, "success"),
        "mean return": partial(_estimate, "mean_return"),
        **{f"pass@{k}": partial(_of_samples, "pass_at", k) for k in several},
        **{f"pass^{k}": partial(_of_samples, "pass_hat", k) for k in several},
        "mean turns": lambda row: _number(row["turns_mean"]),
        "cost (USD)": lambda row: _number(row.get("cost_usd")),
    }
    cells = {name: [cell(row) for row in results] for name, cell in columns.items()}
    shown = [name for name in columns if any(cells[name])]
    return shown, [[cells[name][at] for name in shown] for at in range(len(results))]


def _estimate(name: str, row: Mapping[str, Any]) -> str:
    found = row.get(name)  # a report of an earlier version has no interval of the return
    return "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**found) if found else ""


def _of_samples(name: str, samples: int, row: Mapping[str, Any]) -> str:
    share = row[name].get(str(samples))
    return "" if share is None else f"{share:.3f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _options(
    runs: Sequence[RunData], axis: Axis, smooth: int, metrics: Sequence[str]
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the note and the options of each chart, by title."""
    chosen = metrics or watched(runs)
    of_runs = [{panel.kind.title: panel for panel in [*panels(run), *metric_panels(run, chosen)]} for run in runs]
    found = {}
    for title in dict.fromkeys(title for by_title in of_runs for title in by_title):
        drawn = [(run, of[title]) for run, of in zip(runs, of_runs, strict=True) if title in of]
        found[title] = (describe_panel(drawn[0][1], smooth), chart(drawn, axis, smooth))
    return found


async def _charts(page: Page, opened: list[OpenedSource], axis: Axis, smooth: int, metrics: Sequence[str]) -> None:
    grid = ui.element("div").classes("sides")
    drawn: dict[str, ui.echart] = {}

    async def on_point(event: EChartPointClickEventArguments) -> None:
        run = opened[0] if len(opened) == 1 else next(o for o in opened if event.series_name.startswith(f"{o.key}: "))
        name = event.series_name if len(opened) == 1 else event.series_name.removeprefix(f"{run.key}: ")
        point: Any = event.data  # [x, y, step], see `chart`
        shown = panels(await fetch_run(run))
        curve = next((curve for panel in shown for curve in panel.curves if curve.name == name), None)
        parameters = curve.parameters if curve else {}
        ui.navigate.to(link_to(run_path(run, "/episodes"), {**parameters, "step": point[2]}))

    async def draw() -> None:
        runs = [await fetch_run(one) for one in opened]
        if len(runs) == 1 and opened[0].source.kind == "evaluation" and len({at.step for at in runs[0].steps}) < 2:
            empty.set_visibility(False)  # curves of one point
            return
        charts = await in_thread(lambda: _options(runs, axis, smooth, metrics))
        for place, (title, (note, options)) in enumerate(charts.items()):
            if title in drawn:
                drawn[title].options.update(with_look(options))
                drawn[title].update()
            else:
                with grid, ui.element().classes("min-w-0") as cell:
                    drawn[title] = add_chart(title, options, note, on_point)
                cell.move(target_index=place)
        empty.set_visibility(not drawn)

    empty = ui.label("No episode and no metric is recorded yet.")
    await draw()
    for run in opened:
        page.refresh_with(run, draw)
