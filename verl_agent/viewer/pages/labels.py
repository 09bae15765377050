"""Labels of episodes: the editor on the page of an episode, and the list of all labelled ones."""

from collections.abc import Mapping

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError
from verl_agent.trace.labels import EpisodeKey, Label, LabelFile, key_of, parse_tags
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.layout import Page, link_to, new_page, run_path, show_error, show_text, url_of
from verl_agent.viewer.queries import Row, find_episodes, find_labels
from verl_agent.viewer.state import OpenedSource, ViewerState
from verl_agent.viewer.text import short_name

SHOWN = 200
"""Labelled episodes that the page lists at most."""


def add(state: ViewerState) -> None:
    """Register the page `/run/<key>/labels`; the parameter `label` chooses tags, as on the page of episodes."""

    @url_of("/run/{key}/labels")
    async def labels(key: str, request: Request) -> None:
        with new_page(state) as page:
            opened = page.open(key, f"{key}: labels")
            await _list(page, opened, Filter.parse({"label": request.query_params.get("label", "*")}))


def add_label_editor(opened: OpenedSource, row: Row) -> None:
    """Add fields for the tags and the note of an episode; Enter, or leaving a field, saves both."""
    file = LabelFile.of(opened.source.path)
    try:
        label = file.read().get(key_of(row), Label())
    except ConfigError as error:
        show_error(error)
        return
    saved = label

    def save() -> None:
        nonlocal saved
        try:
            new = Label(parse_tags(tags.value or ""), (note.value or "").strip())
            if new == saved:
                return
            file.change(key_of(row), new)
        except ConfigError as error:
            ui.notify(str(error), type="negative")
            return
        saved = new
        ui.notify("label saved", type="positive")

    with ui.row().classes("items-center gap-2"):
        tags = ui.input("tags", value=" ".join(label.tags), placeholder="good lucky")
        note = ui.input("note", value=label.note)
        for field, width in ((tags, "w-40"), (note, "w-96")):
            field.props("dense outlined").classes(f"{width} max-w-full").on("keydown.enter", save).on("blur", save)


async def _list(page: Page, opened: OpenedSource, chosen: Filter) -> None:
    file = LabelFile.of(opened.source.path)

    def find() -> tuple[dict[str, int], list[Row], Mapping[EpisodeKey, Label]]:
        return find_labels(opened.index), find_episodes(opened.index, chosen, SHOWN), file.read()

    def show(found: tuple[dict[str, int], list[Row], Mapping[EpisodeKey, Label]]) -> None:
        counts, rows, notes = found
        if not notes:
            ui.label("No episode is labelled. Tags and notes are set on the page of an episode.")
            return
        ui.label(f"Labels are kept in {file.path}.").classes("muted")
        with ui.row().classes("gap-3"):
            ui.link("all", run_path(opened, "/labels"))
            for tag, count in counts.items():
                ui.link(f"{short_name(tag)} ({count})", link_to(run_path(opened, "/labels"), {"label": tag}))
        for row in rows:
            label = notes.get(key_of(row), Label())
            with ui.row().classes("items-baseline gap-3"):
                ui.link(
                    f"step {row['step']} {row['env']} {short_name(row['task'])}, sample {row['sample']}",
                    run_path(opened, f"/episode/{row['id']}"),
                )
                ui.label(f"return {row['reward']:g}")
                for tag in label.tags:
                    ui.label(short_name(tag)).classes("accent")
                show_text(label.note)

    await page.show(opened, find, show)
