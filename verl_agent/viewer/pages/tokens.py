"""Tokens of a trained episode, colored by mask, advantage, log-prob, entropy or gap, and the list of such episodes."""

from pathlib import Path

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError, counted, did_you_mean
from verl_agent.trace.token_files import TokenRow, read_tokens
from verl_agent.viewer.layout import Page
from verl_agent.viewer.links import here, run_path, show_in_url
from verl_agent.viewer.pages.listing import add_listing, whole_number
from verl_agent.viewer.pages.table import Table, in_order
from verl_agent.viewer.queries import Row, find_row
from verl_agent.viewer.recorded_tokens import episodes_with_tokens, file_with_tokens
from verl_agent.viewer.state import OpenedSource, in_thread
from verl_agent.viewer.text import short_name
from verl_agent.viewer.token_text import TokenText
from verl_agent.viewer.token_views import MASK, VIEWS, TokenView, available, color, means_by_turn

HOW = (
    "A training run records tokens with episode.record_tokens={every: 10, groups: 8}, an evaluation with "
    "evaluation.logprobs=5."
)
COLUMNS = ("step", "env", "category", "task", "sample", "reward", "success", "turns", "stop")
CSS = """
.token-text {font-family: ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.6}
.token-text span {unicode-bidi: isolate} .token-text span:hover {outline: 1px solid var(--muted)}
.token-first {border-left: 3px solid var(--muted); scroll-margin-top: 8rem}
.token-tip {position: fixed; z-index: 99; background: var(--text); color: var(--page); padding: 4px 8px;
  border-radius: 4px; font: 12px ui-monospace, monospace; white-space: pre-wrap; max-width: 40rem; pointer-events: none}
"""


async def show_list(page: Page, opened: OpenedSource, request: Request) -> None:
    """Show the page `/run/<key>/tokens`."""

    def find(limit: int, offset: int) -> tuple[list[Row], int]:
        rows = in_order(episodes_with_tokens(opened), request.query_params.get("sort", ""))
        return rows[offset : offset + limit], len(rows)

    _, total = await in_thread(lambda: find(0, 0))
    if not total:
        ui.label(f"No tokens are recorded. {HOW}")
        return
    ui.label(f"Tokens are recorded of {counted(total, 'episode')}; a click opens one.")
    await add_listing(page, opened, "episode", COLUMNS, find, lambda row: _path(opened, row["id"]), sortable=True)


def _path(opened: OpenedSource, episode: int) -> str:
    return run_path(opened, f"/episode/{episode}/tokens")


async def show(page: Page, opened: OpenedSource, request: Request) -> None:
    """Show the page `/run/<key>/episode/<id>/tokens?color=...&segment=...&turn=...`; turns count from 1."""
    query, number = request.query_params, whole_number("episode", request.path_params["number"])
    place, turn = (whole_number(name, query.get(name, "0")) for name in ("segment", "turn"))
    row = find_row(opened.index, number)
    if row is None:
        raise ConfigError(f"no episode {number} in {opened.key!r}.")
    file = await in_thread(lambda: file_with_tokens(opened, row))
    if file is None:
        raise ConfigError(f"the tokens of this episode are not recorded. {HOW}")
    segments = await in_thread(lambda: _read(file, row))
    if place >= len(segments):
        raise ConfigError(f"segment={place} is not recorded. Allowed: 0 to {len(segments) - 1}.")
    view = _view(segments[place], query.get("color", ""))
    page.set_title(f"tokens of {short_name(row['task'])} · step {row['step']}")
    _facts(opened, row, segments, segments[place])
    _text(segments[place], view)
    if turn:
        script = f"document.getElementById('tokens-turn-{turn}')?.scrollIntoView({{block: 'start'}})"
        ui.timer(0.3, lambda: ui.run_javascript(script), once=True)


def _read(file: Path, row: Row) -> list[TokenRow]:
    try:
        return read_tokens(file, row["group"], row["sample"])
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error


def _view(row: TokenRow, name: str) -> TokenView:
    views = {view.name: view for view in available(row)}
    if not name:
        return views.get("advantages") or views[MASK]
    if missing := next((view for view in VIEWS if view.name == name and name not in views), None):
        raise ConfigError(
            f"color={name!r} ({missing.label}) is not recorded for this episode. Recorded: {', '.join(views)}."
        )
    if name not in views:
        raise ConfigError(f"color={name!r} is not allowed. {did_you_mean(name, list(views))}")
    return views[name]


def _facts(opened: OpenedSource, row: Row, segments: list[TokenRow], segment: TokenRow) -> None:
    written = sum(turn >= 0 for turn in segment.turns)
    with ui.row().classes("items-baseline gap-4"):
        ui.link("episode", run_path(opened, f"/episode/{row['id']}"))
        ui.link("all recorded tokens", run_path(opened, "/tokens"))
        ui.label(f"{row['env']} {short_name(row['task'])}, sample {row['sample']}, return {row['reward']:g}")
        ui.label(f"{len(segment.token_ids)} tokens: {written} written, {sum(segment.loss_mask)} of them in the loss")
    if len(segments) > 1:
        with ui.row().classes("items-baseline gap-2"):
            ui.label("The agent edited its context. Segments:")
            for number in range(len(segments)):
                ui.link(str(number), here(segment=number, turn=""))


def _text(segment: TokenRow, view: TokenView) -> None:
    ui.add_css(CSS)
    views = {one.name: one for one in available(segment)}

    def choose(name: str) -> None:
        shown.paint(color(segment, views[name]))
        scale.text = _scale(segment, views[name])
        show_in_url(color=name)

    with ui.row().classes("items-center gap-4 sticky top-12 surface z-10 p-1 w-full"):
        labels = {name: one.label for name, one in views.items()}
        ui.select(labels, value=view.name, label="color", on_change=lambda event: choose(event.value)).classes("w-64")
        scale = ui.label(_scale(segment, view)).classes("muted")
    with ui.expansion("Means of each turn").props("dense").classes("w-full"):
        means = means_by_turn(segment)
        Table(list(means[0]) if means else (), means)
    shown = TokenText(segment, color(segment, view)).classes("w-full")


def _scale(row: TokenRow, view: TokenView) -> str:
    """Return a sentence on the colors of a view."""
    if view.name == MASK:
        return "blue: in the loss; orange: written by the model and not in the loss; no color: prompt and observations"
    bound = f"{color(row, view).bound:.3g}"
    if view.signed:
        return f"blue: up to {bound} and above; orange: down to -{bound} and below; no color: 0"
    unit = "-" if "logprobs" in view.name else ""
    return f"the stronger, the further from 0; strongest at {unit}{bound}"
