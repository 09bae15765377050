"""Background polling: one failed poll ends neither the run nor the polling."""

import time

import pytest

from verl_agent.runs.console import poll_in_background


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
