"""Input and output that the commands share."""

import json
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from verl_agent.errors import ConfigError


def fail(message: str) -> NoReturn:
    """Print an error and exit with code 2."""
    Console(stderr=True).print(f"[red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(code=2)


def print_line(line: str) -> None:
    """Print a line as it is, without markup and without wrapping."""
    Console().print(line, markup=False, highlight=False, soft_wrap=True)


def read_json(options: str) -> dict[str, Any]:
    """Return the keyword arguments that `--options` holds.

    Raises:
        ConfigError: the text is not a JSON object.
    """
    try:
        keywords = json.loads(options)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"--options is not JSON: {error}. Allowed: an object such as '{{}}', got {options}."
        ) from error
    if not isinstance(keywords, dict):
        raise ConfigError(f"--options must be a JSON object, such as '{{}}', got {options}.")
    return keywords
