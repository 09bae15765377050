"""Test which runs may have a turn limit by task or by group."""

import pytest

from tests.support.packages import write_metadata
from verl_agent.config.settings import read_run_env
from verl_agent.errors import ConfigError
from verl_agent.training.preflight.schedules import check_schedule

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
        (PER_TASK, {}, 33, False, r"per_task\.window=32 keeps fewer .*rollout\.n=33\).* Set it to 33 or more"),
        ({"per_task": {"rule": "ladder", "window": 1}}, {}, 8, False, ""),
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


OWN_SCHEDULES = """
from verl_agent import Schedule

class Still(Schedule):
    def limit(self, step, item):
        return self.stages[0]

class Learning(Still):
    def observe(self, outcomes):
        pass
"""


def test_a_schedule_of_another_package_that_learns_is_refused_where_the_filter_hides_outcomes(tmp_path, monkeypatch):
    entries = {"still": "learning_limits:Still", "learning": "learning_limits:Learning"}
    write_metadata(tmp_path, "learning-limits", {"verl_agent.schedules": entries})
    (tmp_path / "learning_limits.py").write_text(OWN_SCHEDULES, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    config = {"env": {"name": "guess_number"}, "agent": {}, "episode": {"max_tokens_per_turn": 16}}
    still, learning = (
        read_run_env(config | {"horizon": {"max_turns": [2, 4], "schedule": name}}) for name in ("still", "learning")
    )
    check_schedule(still, 4, filters=True)
    check_schedule(learning, 4, filters=False)
    with pytest.raises(ConfigError, match=r"horizon\.schedule='learning' is not allowed with algorithm\.filter_groups"):
        check_schedule(learning, 4, filters=True)
