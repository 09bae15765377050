"""Test of the way from the episode loop to an adapter: each layer on it does a job of its own."""

import pytest

from tests.support.frames import frames
from verl_agent.envs.hosts.local import inline_pool, process_pool


@pytest.mark.parametrize(("new_pool", "most"), [(None, 4), (inline_pool, 8), (process_pool, 10)])
def test_an_action_passes_few_frames_from_the_loop_to_the_adapter(new_pool, most):
    found = frames(new_pool)
    assert len(found) <= most, found
    assert found[:2] == ["ReplySession.step", "RecoveringSession.step"]
