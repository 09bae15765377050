"""Test which runs may have a turn limit by task or by group."""

import pytest

from tests.support.packages import write_metadata
from verl_agent.config.settings import read_run_env
from verl_agent.errors import ConfigError
from verl_agent.training.preflight.schedules import check_schedule, try_schedule

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

class LaterTask(Still):
    def limit(self, step, item):
        return 0 if item.id.endswith(":2") else 2

class LaterStep(Still):
    def limit(self, step, item):
        return 2 if step < 9 else 5

class Unsaved(Still):
    def saved(self):
        return {"seen": {1}}
"""


@pytest.fixture
def own_schedule(tmp_path, monkeypatch):
    """Return a function from the name of a schedule of another package to the environment of a run with it."""
    names = ("Still", "Learning", "LaterTask", "LaterStep", "Unsaved")
    entries = {name.lower(): f"learning_limits:{name}" for name in names}
    write_metadata(tmp_path, "learning-limits", {"verl_agent.schedules": entries})
    (tmp_path / "learning_limits.py").write_text(OWN_SCHEDULES, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    config = {"env": {"name": "guess_number"}, "agent": {}, "episode": {"max_tokens_per_turn": 16}}
    return lambda name: read_run_env(config | {"horizon": {"max_turns": [2, 4], "schedule": name}})


def test_a_schedule_of_another_package_that_learns_is_refused_where_the_filter_hides_outcomes(own_schedule):
    still, learning = own_schedule("still"), own_schedule("learning")
    check_schedule(still, 4, filters=True)
    check_schedule(learning, 4, filters=False)
    with pytest.raises(ConfigError, match=r"horizon\.schedule='learning' is not allowed with algorithm\.filter_groups"):
        check_schedule(learning, 4, filters=True)


def test_an_error_of_a_mixture_names_the_entry(own_schedule):
    with pytest.raises(ConfigError, match=r"^env\.mixture, games: horizon\.schedule='learning' is not allowed"):
        check_schedule(own_schedule("learning"), 4, True, "games")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("latertask", r"returned 0 at step 1\."),
        ("laterstep", r"returned 5 at step 9\. Allowed: a whole number from 1 to 4"),
        ("unsaved", r"horizon\.schedule='unsaved' returned a state from saved that JSON cannot keep"),
    ],
)
def test_a_schedule_of_another_package_that_would_fail_later_stops_the_run_before_its_start(
    own_schedule, name, message
):
    with pytest.raises(ConfigError, match=message):
        try_schedule(own_schedule(name), 9)
    try_schedule(own_schedule("still"), 9)
