"""Tokens of a trained episode, colored by mask, advantage, log-prob, entropy or gap, and the list of such episodes."""

from dataclasses import dataclass
from pathlib import Path

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError, counted, did_you_mean
from verl_agent.trace.token_files import TokenRow, read_tokens
from verl_agent.viewer.layout import link_to, new_page, run_path, url_of
from verl_agent.viewer.pages.grid import add_grid, add_table
from verl_agent.viewer.pages.paging import whole_number
from verl_agent.viewer.queries import Row, find_row
from verl_agent.viewer.recorded_tokens import episodes_with_tokens, file_with_tokens
from verl_agent.viewer.state import OpenedSource, ViewerState, in_thread
from verl_agent.viewer.text import short_name
from verl_agent.viewer.token_text import TokenText
from verl_agent.viewer.token_views import MASK, VIEWS, TokenView, available, by_turn, color

HOW = (
    "A training run records tokens with episode.record_tokens={every: 10, groups: 8}, an evaluation with "
    "evaluation.logprobs=5."
)
CSS = """
.token-text {font-family: ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.6}
.token-text span {unicode-bidi: isolate} .token-text span:hover {outline: 1px solid var(--muted)}
.token-first {border-left: 3px solid var(--muted); scroll-margin-top: 8rem}
.token-tip {position: fixed; z-index: 99; background: var(--text); color: var(--page); padding: 4px 8px;
  border-radius: 4px; font: 12px ui-monospace, monospace; white-space: pre-wrap; max-width: 40rem; pointer-events: none}
"""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """Parameters of the URL: view, segment from 0, turn from 1 (0 for none)."""

    view: str
    segment: int
    turn: int

    @classmethod
    def of(cls, request: Request) -> "TokenRequest":
        """Read the parameters; raises ConfigError if one is no whole number."""
        query = request.query_params
        segment, turn = (whole_number(name, query.get(name, "0")) for name in ("segment", "turn"))
        return cls(query.get("color", ""), segment, turn)

    def with_color(self, name: str) -> dict[str, object]:
        """Return the parameters of the URL of the same place in another color."""
        return {"color": name, "segment": self.segment or "", "turn": self.turn or ""}


def add(state: ViewerState) -> None:
    """Register the pages `/run/<key>/tokens` and `/run/<key>/episode/<id>/tokens?color=...&segment=...&turn=...`."""

    @url_of("/run/{key}/tokens")
    async def recorded(key: str) -> None:
        with new_page(state) as page:
            opened = page.open(key, f"{key}: tokens")
            _list(opened, await in_thread(lambda: episodes_with_tokens(opened)))

    @url_of("/run/{key}/episode/{number}/tokens")
    async def tokens(key: str, number: str, request: Request) -> None:
        with new_page(state) as page:
            opened, chosen = page.open(key), TokenRequest.of(request)
            row = find_row(opened.index, whole_number("episode", number))
            if row is None:
                raise ConfigError(f"no episode {number} in {key!r}.")
            file = await in_thread(lambda: file_with_tokens(opened, row))
            if file is None:
                raise ConfigError(f"the tokens of this episode are not recorded. {HOW}")
            segments = await in_thread(lambda: _read(file, row))
            if chosen.segment >= len(segments):
                raise ConfigError(f"segment={chosen.segment} is not recorded. Allowed: 0 to {len(segments) - 1}.")
            view = _view(segments[chosen.segment], chosen.view)
            page.set_title(f"tokens of {short_name(row['task'])} · step {row['step']}")
            _facts(opened, row, segments, chosen)
            _text(opened, row, segments[chosen.segment], view, chosen)


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


def _list(opened: OpenedSource, rows: list[Row]) -> None:
    if not rows:
        ui.label(f"No tokens are recorded. {HOW}")
        return
    ui.label(f"Tokens are recorded of {counted(len(rows), 'episode')}; a click opens one.")
    shown = ("step", "env", "category", "task", "sample", "reward", "success", "turns", "stop")
    data = [{name: row[name] for name in (*shown, "id")} for row in rows]
    add_grid(
        shown,
        data,
        lambda row, column: ui.navigate.to(_path(opened, row["id"])),
        sortable=True,
        narrow=("step", "task", "success", "turns"),
    )


def _path(opened: OpenedSource, episode: int) -> str:
    return run_path(opened, f"/episode/{episode}/tokens")


def _facts(opened: OpenedSource, row: Row, segments: list[TokenRow], chosen: TokenRequest) -> None:
    segment = segments[chosen.segment]
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
                parameters = {"color": chosen.view, "segment": number}
                ui.link(str(number), link_to(_path(opened, row["id"]), parameters))


def _text(opened: OpenedSource, row: Row, segment: TokenRow, view: TokenView, chosen: TokenRequest) -> None:
    ui.add_css(CSS)
    views = {one.name: one for one in available(segment)}

    def choose(name: str) -> None:
        shown.paint(color(segment, views[name]))
        scale.text = _scale(segment, views[name])
        url = link_to(_path(opened, row["id"]), chosen.with_color(name))
        ui.run_javascript(f"history.replaceState(null, '', {url!r})")

    with ui.row().classes("items-center gap-4 sticky top-12 surface z-10 p-1 w-full"):
        labels = {name: one.label for name, one in views.items()}
        ui.select(labels, value=view.name, label="color", on_change=lambda event: choose(event.value)).classes("w-64")
        scale = ui.label(_scale(segment, view)).classes("muted")
    _turns(segment, views)
    shown = TokenText(segment, color(segment, view)).classes("w-full")
    if chosen.turn:
        script = f"document.getElementById('tokens-turn-{chosen.turn}')?.scrollIntoView({{block: 'start'}})"
        ui.timer(0.3, lambda: ui.run_javascript(script), once=True)


def _scale(row: TokenRow, view: TokenView) -> str:
    """Return a sentence on the colors of a view."""
    if view.name == MASK:
        return "blue: in the loss; orange: written by the model and not in the loss; no color: prompt and observations"
    bound = f"{color(row, view).bound:.3g}"
    if view.signed:
        return f"blue: up to {bound} and above; orange: down to -{bound} and below; no color: 0"
    unit = "-" if "logprobs" in view.name else ""
    return f"the stronger, the further from 0; strongest at {unit}{bound}"


def _turns(segment: TokenRow, views: dict[str, TokenView]) -> None:
    names = [name for name in views if name != MASK]
    with ui.expansion("Means of each turn").classes("w-full"):
        head = ["turn", "tokens", "in the loss", *(views[name].label for name in names)]
        lines = [
            [str(at.turn + 1), str(at.tokens), str(at.trained), *(f"{at.means[name]:.4g}" for name in names)]
            for at in by_turn(segment)
        ]
        add_table(head, lines)
