"""Tests of the runner in the driver."""

import gc
import io
from typing import Any

import pytest
from tqdm import tqdm  # type: ignore[import-untyped]

from verl_agent.training.runner import DriverRunner


class Interrupted:
    """Runner with a progress bar that is interrupted, and that its traceback keeps."""

    def run(self, config: Any) -> None:
        bar = tqdm(total=1, file=config["file"])
        assert bar is not None
        raise KeyboardInterrupt


def test_an_interrupted_progress_bar_prints_nothing_later():
    file = io.StringIO()
    with pytest.raises(KeyboardInterrupt) as caught:
        DriverRunner(Interrupted).run.remote({"file": file})  # type: ignore[arg-type]
    printed = file.getvalue()
    del caught
    gc.collect()
    assert file.getvalue() == printed
