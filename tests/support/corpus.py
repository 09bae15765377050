"""Deep Search's embedded corpus, built by the users' command in a cache folder of a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from env_adapters.deepsearch.__main__ import app


@contextmanager
def embedded_corpus(folder: Path) -> Iterator[str]:
    """Build the corpus in `folder` for this process and its children; yield the output of the command."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("VERL_AGENT_CACHE", str(folder))
        result = CliRunner().invoke(app, ["build"])
        assert result.exit_code == 0, result.output
        yield result.output
