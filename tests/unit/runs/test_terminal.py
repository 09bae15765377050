"""Output of a run on the terminal: background polling, and the message about a failure."""

import io
import time

import pytest
from rich.console import Console

from verl_agent.runs.console import first_cause, poll_in_background, report_failure
from verl_agent.runs.folder import RunFolder


def test_polling_continues_after_a_failed_poll():
    """For example, while a file is being written."""
    polls = []

    def poll():
        polls.append(len(polls))
        if len(polls) == 1:
            raise ValueError("half a line")

    with poll_in_background(poll, every_s=0.01):
        while len(polls) < 3:
            time.sleep(0.01)
    assert len(polls) >= 4, "no poll at the end of the block"


def test_a_failed_last_poll_hides_no_error_of_the_block():
    def poll():
        raise OSError("gone")

    with pytest.raises(KeyError, match="of the run"), poll_in_background(poll, every_s=10):
        raise KeyError("of the run")


def failed(folder: RunFolder) -> str:
    """Return the message about a failure in another thread of the run, which another error followed."""
    output = io.StringIO()
    folder.log.parent.mkdir(exist_ok=True)
    folder.log.write_text("")
    with pytest.raises(RuntimeError), report_failure(folder, Console(file=output, width=500)):
        try:
            raise ValueError("the first cause\nmore")
        except ValueError as error:
            raise RuntimeError("what followed") from error
    return output.getvalue()


def test_a_failure_names_its_first_cause_and_how_to_go_on(tmp_path):
    first, second, *_ = failed(RunFolder.at(tmp_path)).splitlines()
    assert first == "The run failed: ValueError: the first cause"
    assert second.startswith("Run the same command again to resume after step 0. Errors in ")


def test_the_first_cause_of_an_error_while_another_was_handled_is_the_other():
    try:
        try:
            raise OSError("no space")
        finally:
            int("not a number")
    except ValueError as error:
        assert first_cause(error) == "OSError: no space"
    assert first_cause(KeyError()) == "KeyError"
