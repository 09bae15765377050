"""What is looked at while a run goes on: one bad look ends nothing."""

import time

import pytest

from verl_agent.runs.console import poll_in_background


def test_a_look_that_fails_is_followed_by_others():
    """Such as at a file that is just being written."""
    looks = []

    def look():
        looks.append(len(looks))
        if len(looks) == 1:
            raise ValueError("half a line")

    with poll_in_background(look, every_s=0.01):
        while len(looks) < 3:
            time.sleep(0.01)
    assert len(looks) >= 4, "and once more at the end"


def test_a_look_that_fails_at_the_end_hides_no_error():
    def look():
        raise OSError("gone")

    with pytest.raises(KeyError, match="of the run"), poll_in_background(look, every_s=10):
        raise KeyError("of the run")
