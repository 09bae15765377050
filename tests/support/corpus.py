"""Deep Search's embedded corpus, built by the users' command once a test process."""

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from env_adapters.deepsearch.__main__ import app


@contextmanager
def embedded_corpus() -> Iterator[str]:
    """Use a cache folder with the corpus in this process and its children; yield the output of the command."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("VERL_AGENT_CACHE", str(_folder()))
        yield _build()


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="corpus-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _build() -> str:
    result = CliRunner().invoke(app, ["build"])
    assert result.exit_code == 0, result.output
    return result.output
