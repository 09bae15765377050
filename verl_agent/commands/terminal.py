"""Input and output that the commands share."""

import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from verl_agent.errors import ConfigError
from verl_agent.terminal import Console, say, say_error

EXTRAS = {
    "check-estimator": "train",
    "leaderboard": "eval",
    "play": "viewer",
    "scaling": "eval",
    "serve": "serve",
    "study": "train",
    "suite": "eval",
    "view": "viewer",
}
"""Extra of this package with what a command needs besides a plain installation."""


def fail(message: str) -> NoReturn:
    """Print an error and exit with code 2."""
    say_error(message)
    raise typer.Exit(code=2)


def explain_missing(command: str, error: ModuleNotFoundError) -> str | None:
    """Return the message for a package that a command needs and that no plain installation has; None for a bug."""
    module = (error.name or "").partition(".")[0]
    if command not in EXTRAS or module in ("verl_agent", "env_adapters", ""):
        return None
    return f"{command} needs the package {module}, which is not installed: pip install 'verl-agent[{EXTRAS[command]}]'."


def print_line(line: str) -> None:
    """Print a line as it is, without markup and without wrapping."""
    say(Console(), line)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hide the warnings with which verl and transformers are imported and load a tokenizer, while the block runs."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")
    logging.getLogger("verl").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


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
