"""Deep Search's embedded corpus, made by the command that users run, in a cache that nobody else sees."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from env_adapters.deepsearch.__main__ import app


@contextmanager
def embedded_corpus(folder: Path) -> Iterator[None]:
    """The corpus in `folder`, for this process and those that it starts."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("VERL_AGENT_CACHE", str(folder))
        result = CliRunner().invoke(app, ["build"])
        assert result.exit_code == 0, result.output
        yield
