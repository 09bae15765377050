"""Test which runs may have a turn limit by task or by group."""

import pytest

from verl_agent.config.settings import read_run_env
from verl_agent.errors import ConfigError
from verl_agent.training.turn_limits import check_schedule

DEEPEN, PER_TASK = {"deepen": True}, {"per_task": {"rule": "signal"}}
CRITERIA = [{"name": "goal", "description": "The number was found."}]
RUBRIC = {"judge": {"rubric": {"criteria": CRITERIA}, "api": {"base_url": "http://127.0.0.1:9/v1", "name": "m"}}}


@pytest.mark.parametrize(
    ("horizon", "more", "samples", "filters", "message"),
    [
        (DEEPEN, {}, 1, False, r"rollout\.n=1: a group of one episode .* Set rollout\.n to 2 or more"),
        (DEEPEN, RUBRIC, 4, False, r"deepen=true is not allowed with judge\.rubric: .* Set .*, or judge\.rubric=null"),
        (
            DEEPEN,
            {"agent": {"options": {"turns_left": True}}},
            4,
            False,
            r"turns_left=true: .* Set one of them to false",
        ),
        (PER_TASK, {}, 4, True, r"per_task is not allowed with algorithm\.filter_groups\.enable=true: "),
        (DEEPEN, {}, 2, True, ""),
        (PER_TASK, RUBRIC, 1, False, ""),
        ({}, RUBRIC, 1, True, ""),
    ],
)
def test_a_schedule_that_does_not_suit_the_run_raises_config_error(horizon, more, samples, filters, message):
    config = {"env": {"name": "guess_number"}, "horizon": {"max_turns": [2, 4]} | horizon, "agent": {}}
    config["episode"] = {"max_tokens_per_turn": 16}
    run_env = read_run_env(config | more)
    if not message:
        check_schedule(run_env, samples, filters)
        return
    with pytest.raises(ConfigError, match=message):
        check_schedule(run_env, samples, filters)
