"""Parts of pages: headings, errors, HTML and text of others, buttons, and fields for parameters of the URL."""

from collections.abc import Callable, Iterable, Mapping

from nicegui import ui

from verl_agent.errors import ConfigError, describe_exception
from verl_agent.viewer.episode_html import block, html
from verl_agent.viewer.links import here
from verl_agent.visible import make_visible


def error_message(error: Exception) -> str:
    """Return the message of an error for a reader."""
    if isinstance(error, ConfigError):
        return make_visible(str(error))
    return make_visible(
        f"This page has failed: {describe_exception(error)}. The output of `verl-agent view` has the details."
    )


def show_error(error: Exception) -> None:
    """Show the message of an error."""
    ui.label(error_message(error)).classes("bad-text")


def add_fields(names: Iterable[str], hints: Mapping[str, str] | None = None, button: str = "") -> dict[str, ui.input]:
    """Add a field for each parameter of the URL; Enter opens the page with their values.

    Args:
        hints: example of a value by name.
        button: name of a button that does the same; empty for none.
    """
    fields: dict[str, ui.input] = {}
    query = ui.context.client.request.query_params

    def go() -> None:
        ui.navigate.to(here(**{name: str(field.value or "").strip() for name, field in fields.items()}, page=""))

    for name in names:
        field = ui.input(name, value=query.get(name, ""), placeholder=(hints or {}).get(name, ""))
        fields[name] = field.props("dense outlined").on("keydown.enter", go)
    if button:
        ui.button(button, on_click=go).props("dense unelevated")
    return fields


def icon_button(icon: str, name: str, on_click: Callable[[], object], size: str = "md") -> ui.button:
    """Add a button with an icon, whose name a screen reader says and a tooltip shows."""
    button = ui.button(icon=icon, on_click=on_click).props(f"dense flat size={size}").tooltip(name)
    button.props["aria-label"] = name
    return button


def add_heading(text: str) -> ui.html:
    """Add the heading of a section."""
    return ui.html(html(text), sanitize=False, tag="h2").classes("heading")


def show_html(content: str, classes: str = "w-full") -> ui.html:
    """Show HTML of this package, in which all text from outside is escaped."""
    return ui.html(content, sanitize=False).classes(classes)


def show_text(text: str, look: str = "") -> None:
    """Show text of a model or an environment as it is: never as markup, long text folded; see `block`."""
    show_html(block(text, look))
