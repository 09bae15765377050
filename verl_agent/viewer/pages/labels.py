"""Labels of episodes: the editor on the page of an episode, and the table of all labelled ones."""

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError
from verl_agent.trace.labels import Label, LabelFile, key_of, parse_tags
from verl_agent.viewer.elements import show_error
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.layout import Page
from verl_agent.viewer.links import here, link_to, run_path
from verl_agent.viewer.pages.listing import add_listing
from verl_agent.viewer.queries import Row, count_episodes, find_episodes, find_labels
from verl_agent.viewer.state import OpenedSource
from verl_agent.viewer.text import short_name

COLUMNS = ("step", "env", "task", "sample", "reward", "tags", "note")


async def show(page: Page, opened: OpenedSource, request: Request) -> None:
    """Show the page `/run/<key>/labels`; the parameter `label` chooses tags, as on the page of episodes."""
    file = LabelFile.of(opened.source.path)
    chosen = Filter.parse({"label": request.query_params.get("label", "*")})

    def find(limit: int, offset: int) -> tuple[list[Row], int]:
        notes = file.read()
        rows = find_episodes(opened.index, chosen, limit, offset)
        labels = [notes.get(key_of(row), Label()) for row in rows]
        shown = [row | {"tags": " ".join(one.tags), "note": one.note} for row, one in zip(rows, labels, strict=True)]
        return shown, count_episodes(opened.index, chosen)

    def show_tags(counts: dict[str, int]) -> None:
        if not counts and not file.read():
            ui.label("No episode is labelled. Tags and notes are set on the page of an episode.")
            return
        ui.label(f"Labels are kept in {file.path}.").classes("muted")
        with ui.row().classes("gap-3"):
            ui.link("all", here(label="", page=""))
            for tag, count in counts.items():
                ui.link(f"{short_name(tag)} ({count})", here(label=tag, page=""))

    await page.show(opened, lambda: find_labels(opened.index), show_tags)
    link = lambda row: link_to(run_path(opened, f"/episode/{row['id']}"))  # noqa: E731
    await add_listing(page, opened, "labelled episode", COLUMNS, find, link)


def add_label_editor(opened: OpenedSource, row: Row) -> None:
    """Add fields for the tags and the note of an episode; Enter, or leaving a field, saves what was edited."""
    file = LabelFile.of(opened.source.path)
    try:
        saved = file.read().get(key_of(row), Label())
    except ConfigError as error:
        show_error(error)
        return

    def save() -> None:
        nonlocal saved
        new = Label(parse_tags(tags.value or ""), (note.value or "").strip())
        if new != saved:
            saved = file.change(key_of(row), new, saved)
            if saved != new:  # somebody else edited the other field
                tags.value, note.value = " ".join(saved.tags), saved.note
            ui.notify("label saved", type="positive")

    with ui.row().classes("items-center gap-2"):
        tags = ui.input("tags", value=" ".join(saved.tags), placeholder="good lucky")
        note = ui.input("note", value=saved.note)
        for field, width in ((tags, "w-40"), (note, "w-96")):
            field.props("dense outlined").classes(f"{width} max-w-full").on("keydown.enter", save).on("blur", save)
