"""Test that turn limits follow from the step, the task and the episodes so far, and that a restart keeps them."""

import json
import re
from random import Random

import pytest

from tests import ROOT
from tests.support.packages import write_metadata
from verl_agent.config.composing import compose_training
from verl_agent.errors import ConfigError
from verl_agent.horizon import SCHEDULE_GROUP, Adaptive, Horizon, Outcome, PerTask, Replay, Schedule
from verl_agent.sections import section
from verl_agent.training.task_limits import hazards, luby, prospects, signal_per_turn
from verl_agent.training.turn_limits import new_schedule
from verl_agent.types import TaskItem

TASK = TaskItem("env", "task")


def turns_at(horizon: Horizon, step: int) -> int:
    return new_schedule(horizon).limit(step, TASK)


@pytest.mark.parametrize(
    ("schedule", "limit"),
    [({}, 4), ({"order": "shrinking"}, 12), ({"per_task": PerTask()}, 4), ({"deepen": True}, 8)],
)
def test_an_estimate_of_the_first_step_takes_the_limit_that_its_groups_have_about(schedule, limit):
    assert Horizon([4, 8, 12], **schedule).first_limit == limit


def test_each_stage_lasts_its_steps_and_the_last_one_never_ends():
    horizon = Horizon([5, 8, 10], steps_per_stage=100)
    stages = {step: turns_at(horizon, step) for step in (1, 100, 101, 200, 201, 300, 10_000)}
    assert stages == {1: 5, 100: 5, 101: 8, 200: 8, 201: 10, 300: 10, 10_000: 10}


def test_a_resumed_run_has_the_limits_of_an_uninterrupted_one():
    """After a restart at step 100 of [5, 8, 10]/100, AgentGym-RL returned 8 and then 10."""
    whole = [turns_at(Horizon([5, 8, 10], 100), step) for step in range(1, 301)]
    for start in (50, 100, 101, 102, 250):
        assert [turns_at(Horizon([5, 8, 10], 100), step) for step in range(start + 1, 301)] == whole[start:]


def test_one_value_is_a_fixed_horizon():
    assert {turns_at(Horizon([20]), step) for step in (0, 1, 2, 999)} == {20}


def test_validation_before_training_uses_the_first_stage_of_the_schedule():
    assert turns_at(Horizon([3, 6], 10), 0) == 3


def test_evaluation_does_not_depend_on_the_step():
    assert Horizon([3, 6, 10]).turns_for_evaluation() == 10
    assert Horizon([3, 6, 10], eval_max_turns=30).turns_for_evaluation() == 30


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_turns": []}, "horizon.max_turns=[] is not allowed. Allowed: a list of 1 or more whole numbers >= 1."),
        ({"max_turns": [0, 5]}, "horizon.max_turns[0]=0 is not allowed. Allowed: a whole number >= 1."),
        ({"max_turns": [10, 5]}, "horizon.max_turns must not shrink, got [10, 5]. Sort it, or fix the typing error."),
        (
            {"max_turns": [5], "steps_per_stage": 0},
            "horizon.steps_per_stage=0 is not allowed. Allowed: a whole number >= 1 or a list of whole numbers >= 1.",
        ),
        (
            {"max_turns": [5], "eval_max_turns": 0},
            "horizon.eval_max_turns=0 is not allowed. Allowed: a whole number >= 1 or null.",
        ),
    ],
)
def test_invalid_limits_raise_config_error_naming_the_key(values, message):
    with pytest.raises(ConfigError) as error:
        section("horizon", Horizon, values)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (8, "horizon.max_turns=8 is not allowed. Allowed: a list of 1 or more whole numbers >= 1, such as [8]."),
        (0, "horizon.max_turns=0 is not allowed. Allowed: a list of 1 or more whole numbers >= 1."),
        ("8", "horizon.max_turns='8' is not allowed. Allowed: a list of 1 or more whole numbers >= 1."),
        (["5", 8], "horizon.max_turns[0]='5' is not allowed. Allowed: a whole number >= 1."),
        ([4.5], "horizon.max_turns[0]=4.5 is not allowed. Allowed: a whole number >= 1."),
        ([True, 6], "horizon.max_turns[0]=True is not allowed. Allowed: a whole number >= 1."),
    ],
)
def test_limits_must_be_a_list_of_whole_numbers(limits, message):
    with pytest.raises(ConfigError) as error:
        section("horizon", Horizon, {"max_turns": limits})
    assert str(error.value) == message


def test_a_replay_leaves_the_limit_without_the_spare_turns():
    assert [Replay().given(10, limit) for limit in (1, 2, 10, 20)] == [9, 8, 0, 0]
    assert [Replay(spare=2).given(10, limit) for limit in (3, 4, 12, 20)] == [9, 8, 0, 0]


# Growth by a constant, stages of different lengths


def test_each_stage_can_last_its_own_number_of_steps():
    horizon = Horizon([2, 4, 6], steps_per_stage=[1, 3])
    assert [turns_at(horizon, step) for step in range(1, 7)] == [2, 4, 4, 4, 6, 6]


def test_growth_by_a_constant_ends_at_up_to():
    horizon = Horizon([4], steps_per_stage=10, grow_by=3, up_to=12)
    assert horizon.stages == [4, 7, 10, 12]
    assert [turns_at(horizon, step) for step in (1, 10, 11, 21, 31, 999)] == [4, 4, 7, 10, 12, 12]
    assert horizon.turns_for_evaluation() == 12


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps_per_stage": [1, 2]}, "horizon.steps_per_stage=[1, 2] must have one value for each stage but the last"),
        ({"steps_per_stage": [0]}, "horizon.steps_per_stage[0]=0 is not allowed. Allowed: a whole number >= 1."),
        ({"grow_by": 2}, "horizon.grow_by=2 and horizon.up_to=None belong together."),
        ({"grow_by": 2, "up_to": 9}, "horizon.grow_by grows from one limit, horizon.max_turns has 2: [3, 6]."),
        (
            {"max_turns": [3], "grow_by": -1, "up_to": 9},
            "horizon.grow_by=-1 is not allowed. Allowed: a whole number >= 1",
        ),
        ({"max_turns": [3], "grow_by": 1, "up_to": 3}, "horizon.up_to=3 must exceed the first limit, 3."),
        ({"max_turns": [3], "grow_by": 1.5, "up_to": 9}, "horizon.grow_by=1.5 is not allowed. Allowed: a whole number"),
        ({"eval_max_turns": 2.5}, "horizon.eval_max_turns=2.5 is not allowed. Allowed: a whole number >= 1 or null."),
        (
            {"max_turns": [3], "adaptive": {"success_above": 0.5}},
            "horizon.adaptive cannot choose between",
        ),
        ({"replay": {"spare": -1}}, "horizon.replay.spare=-1 is not allowed. Allowed: a whole number >= 0."),
        ({"replay": {"spare": 3}}, "horizon.replay.spare=3 must be below the first limit of horizon.max_turns, 3:"),
        ({"replay": {}, "deepen": True}, "horizon.replay is not allowed with horizon.deepen, which measures"),
    ],
)
def test_invalid_stages_raise_config_error_naming_the_key(values, message):
    with pytest.raises(ConfigError) as error:
        section("horizon", Horizon, {"max_turns": [3, 6], **values})
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "values", [{}, {"success_above": 1.0}, {"turn_limit_above": -0.1}, {"turn_limit_above": 0.5, "window": 0}]
)
def test_conditions_that_never_or_always_hold_raise_config_error(values):
    with pytest.raises(ConfigError, match=r"horizon\.adaptive"):
        section("horizon.adaptive", Adaptive, values)


# Adaptive horizons

GROWING = Horizon([3, 6, 9], steps_per_stage=2, adaptive=Adaptive(success_above=0.6, turn_limit_above=0.8, window=2))
MEASURED = [(0.1, 0.5), (0.7, 0.1), (0.9, 0.1), (0.9, 0.9), (0.0, 0.2), (0.0, 0.9), (0.0, 0.9), (1.0, 1.0)]


def episodes(success: float, turn_limit: float) -> list[Outcome]:
    """Return ten episodes with these shares."""
    return [Outcome("task", "", 3, 3, number < 10 * success, number >= 10 * (1 - turn_limit)) for number in range(10)]


def limits(schedule, measured: list[tuple[float, float]]) -> list[int]:
    limits_by_step = []
    for shares in measured:
        limits_by_step.append(schedule.limit(len(limits_by_step) + 1, TASK))
        schedule.observe(episodes(*shares))
    return limits_by_step


def test_the_horizon_grows_when_tasks_are_solved_or_the_limit_ends_episodes():
    """Steps 2 and 3 solve 0.8 on average, the next two at 6 turns 0.45. The limit ends 0.9 of steps 6 and 7."""
    assert limits(new_schedule(GROWING), MEASURED) == [3, 3, 3, 6, 6, 6, 6, 9]


def test_a_stage_lasts_at_least_its_steps():
    patient = Horizon([3, 6, 9], steps_per_stage=[3, 1], adaptive=Adaptive(success_above=0.6, window=1))
    assert limits(new_schedule(patient), [(1.0, 0.0)] * 5) == [3, 3, 3, 6, 9]


@pytest.mark.parametrize("stop", range(len(MEASURED)))
def test_a_restored_state_continues_like_an_uninterrupted_one(stop):
    """The checkpoint holds the state as JSON."""
    whole = limits(new_schedule(GROWING), MEASURED)
    before, after = new_schedule(GROWING), new_schedule(GROWING)
    limits(before, MEASURED[:stop])
    after.restore(json.loads(json.dumps(before.saved())))
    assert limits(after, MEASURED[stop:]) == whole[stop:]


def test_a_state_with_more_stages_raises_config_error():
    with pytest.raises(ConfigError, match="at stage 4 of an adaptive horizon, but section `horizon` has only 3"):
        new_schedule(GROWING).restore({"stage": 3, "measured": []})


SCHEDULES = """
from verl_agent import Schedule

class Down(Schedule):
    def __init__(self, stages, by=1):
        super().__init__(stages)
        self.by, self.seen = by, 0

    def limit(self, step, item):
        return self.stages[-1] - self.by * step + self.seen

    def observe(self, outcomes):
        self.seen += len(outcomes)

    def saved(self):
        return {"seen": self.seen}

    def restore(self, saved):
        self.seen = saved["seen"]

class Broken(Schedule):
    def limit(self, step, item):
        return {}[step]

class Unsaved(Schedule):
    def observe(self, outcomes):
        return 1 / len(outcomes)

    def saved(self):
        return {"seen": {1}}

    def restore(self, saved):
        self.seen = saved["seen"]

def function(step, stages):
    return 1
"""


@pytest.fixture
def schedules(tmp_path, monkeypatch):
    names = {"down": "Down", "broken": "Broken", "unsaved": "Unsaved", "function": "function"}
    entries = {name: f"own_schedules:{found}" for name, found in names.items()}
    write_metadata(tmp_path, "own-schedules", {SCHEDULE_GROUP: entries})
    tmp_path.joinpath("own_schedules.py").write_text(SCHEDULES)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_schedule_of_another_package_chooses_the_limit_of_each_step(schedules):
    horizon = Horizon([4, 10], schedule="down", options={"by": 2})
    assert [turns_at(horizon, step) for step in (1, 2, 3)] == [8, 6, 4]
    assert horizon.turns_for_evaluation() == 10


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dwn", {}, "horizon.schedule='dwn' is not registered. Did you mean 'down'?"),
        ("down", {"by": 10}, "returned 0 at step 1. Allowed: a whole number from 1 to 10"),
        ("down", {"by": 0.5}, "returned 9.5 at step 1"),
        ("down", {"to": 1}, "horizon.schedule='down' cannot be made: TypeError"),
        ("function", {}, "a subclass of Schedule"),
        ("broken", {}, "horizon.schedule='broken' failed at step 1 for task "),
    ],
)
def test_a_schedule_that_fails_raises_config_error_with_the_step(schedules, name, options, message):
    with pytest.raises(ConfigError) as error:
        turns_at(Horizon([4, 10], schedule=name, options=options), 1)
    assert message in str(error.value)


def test_a_state_that_a_schedule_of_another_package_cannot_keep_raises_config_error(schedules):
    schedule = new_schedule(Horizon([4, 10], schedule="unsaved"))
    for call, said in (
        (lambda: schedule.observe([]), "failed in observe: ZeroDivisionError"),
        (schedule.saved, "returned a state from saved that JSON cannot keep, so no checkpoint can: TypeError"),
        (lambda: schedule.restore({}), "failed in restore: KeyError"),
    ):
        with pytest.raises(ConfigError, match=rf"horizon\.schedule='unsaved' {said}"):
            call()


def test_a_schedule_of_another_package_learns_and_keeps_its_state(schedules):
    horizon = Horizon([4, 10], schedule="down")
    before, after = new_schedule(horizon), new_schedule(horizon)
    before.observe(episodes(1.0, 0.0)[:1])
    after.restore(json.loads(json.dumps(before.saved())))
    assert [one.limit(2, TASK) for one in (before, after)] == [9, 9]


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"adaptive": Adaptive(success_above=0.5)}, "horizon.adaptive and horizon.schedule each decide"),
        ({"order": "random"}, "horizon.schedule and horizon.order each decide"),
        ({"deepen": True}, "horizon.deepen and horizon.schedule each decide"),
        ({"per_task": PerTask()}, "horizon.per_task and horizon.schedule each decide"),
        ({"steps_per_stage": 5}, "horizon.steps_per_stage=5 has no effect with horizon.schedule"),
    ],
)
def test_two_rules_for_the_limit_raise_config_error(others, message):
    with pytest.raises(ConfigError) as error:
        Horizon([4, 10], schedule="down", **others)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "chosen",
    [{"deepen": True}, {"per_task": PerTask()}, {"order": "shrinking"}, {"adaptive": Adaptive(success_above=0.5)}],
)
@pytest.mark.parametrize("limits", [[4], [4, 4]])
def test_a_choice_between_one_limit_raises_config_error(chosen, limits):
    with pytest.raises(ConfigError, match=rf"cannot choose between the limits {re.escape(str(limits))}"):
        Horizon(limits, **chosen)


def test_steps_of_stages_that_random_order_never_reads_are_refused():
    with pytest.raises(ConfigError, match=r"steps_per_stage=12 has no effect with horizon\.order=random, which has no"):
        Horizon([4, 8], 12, order="random")
    assert Horizon([4, 8], 12, order="shrinking").turns_at(12) == 8


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ("rule:ladder,explore:0.3", "explore=0.3"),
        ("rule:ladder,prior:9", "prior=9"),
        ("rule:signal,patience:9", "patience=9"),
        ("slack:2", "slack=2"),
        ("rule:ladder,patience:9,slack:2", ""),
        ("explore:0.3,prior:9", ""),
    ],
)
def test_settings_of_the_other_rule_are_refused(options, refused):
    overrides = ["horizon.max_turns=[4,8]", f"horizon.per_task={{{options}}}"]
    recipe = ROOT / "recipes/textcraft/grpo.yaml"
    if not refused:
        compose_training(recipe, overrides)
        return
    with pytest.raises(ConfigError, match=rf"horizon\.per_task\.{refused} has no effect: it is read only with"):
        compose_training(recipe, overrides)


# Limits by task


def played(task: str, turns: list[int], limit: int, category: str = "", group: str = "") -> list[Outcome]:
    """Return a group whose episodes take these turns: solved, or, where negative, failed or ended by the limit."""
    return [Outcome(task, category, limit, abs(one), one > 0, one < 0 and -one == limit, group) for one in turns]


def without_luck(rule: str, stages: list[int], **options) -> Schedule:
    return new_schedule(Horizon(stages, per_task=PerTask(rule, **options)))


def test_lubys_sequence_is_that_of_the_paper():
    """Luby, Sinclair and Zuckerman 1993, section 1."""
    assert [luby(number) for number in range(1, 16)] == [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]


def test_without_censoring_the_signal_is_that_of_plain_shares():
    """p(L) is the share solved within L turns, and E[min(T, L)] the mean of the turns up to L."""
    draw = Random(3)
    episodes = [(draw.randint(1, 12), draw.random() < 0.4, False) for _ in range(200)]
    for limit in (1, 5, 12):
        share = sum(solved and turns <= limit for turns, solved, _ in episodes) / 200
        turns_mean = sum(min(turns, limit) for turns, _, _ in episodes) / 200
        known = prospects(hazards(episodes, 12), [limit])
        assert known == [pytest.approx((share, turns_mean))]
        assert signal_per_turn(*known[0]) == pytest.approx(share * (1 - share) / turns_mean)


def test_censored_episodes_count_as_long_as_they_were_watched():
    """Three of six are solved at turn 2; of the rest one was ended at 2, and one of the other two is solved at 4."""
    episodes = [*[(2, True, False)] * 3, (2, False, True), (4, True, False), (4, False, True)]
    solved, turns = 0.5 + 0.5 * 0.5, 1 + 1 + 0.5 + 0.5
    assert prospects(hazards(episodes, 4), [4]) == [pytest.approx((solved, turns))]


def test_a_turn_that_no_episode_played_has_no_estimate():
    assert len(prospects(hazards([(3, False, True)], 8), [3, 8])) == 1
    assert len(prospects(hazards([(3, True, False)], 8), [3, 8])) == 2  # all ended before


def test_the_limit_with_the_most_signal_per_turn_is_chosen():
    schedule = without_luck("signal", [4, 8], explore=0.0, prior=0.0)
    schedule.observe(played("easy", [3, 3, -4, -4, 3, 3, -4, -4], 8) + played("hard", [7, 8, 7, -8, -8, -8, -8, 7], 8))
    assert [schedule.limit(2, TaskItem("env", name)) for name in ("easy", "hard")] == [4, 8]


def test_an_unsolved_task_plays_lubys_sequence():
    schedule, limits = without_luck("signal", [2, 4, 8], explore=0.0), []
    for step in range(1, 8):
        limits.append(schedule.limit(step, TASK))
        schedule.observe(played("task", [-limits[-1]] * 4, limits[-1]))
    assert limits == [2, 2, 4, 2, 2, 4, 8]


def test_a_new_task_takes_the_estimate_of_its_category():
    schedule = without_luck("signal", [4, 8], explore=0.0)
    schedule.observe(played("seen", [7, 8, 7, -8, -8, -8, -8, 7], 8, "deep"))
    schedule.observe(played("solved soon", [2, 2, -4, -4], 4, "shallow"))
    limits = [schedule.limit(2, TaskItem("env", "new", {}, category)) for category in ("deep", "shallow")]
    assert limits == [8, 4]


@pytest.mark.parametrize("rule", ["signal", "ladder"])
def test_a_new_category_takes_the_estimate_of_all_tasks(rule):
    schedule = without_luck(rule, [4, 8], **({"explore": 0.0} if rule == "signal" else {}))
    schedule.observe(played("seen", [7, 8, 7, -8, -8, 7, -8, 7], 8, "deep"))
    assert schedule.limit(2, TaskItem("env", "new", {}, "new")) == 8


@pytest.mark.parametrize(
    ("rule", "first", "later"),
    [("signal", [7, 8, 7, 7, -8, -8, -8, -8], [-8] * 8), ("ladder", [7] * 8, [2] * 8)],
)
def test_a_large_step_leaves_no_task_out_of_the_estimate_of_a_category(rule, first, later):
    """The first half of 1,040 episodes of one step differs from the other, as the order of ids may have it."""
    options = {"explore": 0.0} if rule == "signal" else {}
    whole, resumed = (without_luck(rule, [4, 8], **options) for _ in range(2))
    whole.observe(
        [
            one
            for name, turns in (("a", first), ("b", later))
            for task in range(65)
            for one in played(f"{name}{task}", turns, 8, "kind")
        ]
    )
    resumed.restore(json.loads(json.dumps(whole.saved())))
    assert [one.limit(2, TaskItem("env", "new", {}, "kind")) for one in (whole, resumed)] == [8, 8]


def test_a_limit_within_which_a_task_was_never_solved_is_not_chosen():
    """Always solved at turn 8, the task has no signal at 4 and none at 8; 16 costs no turn more, and 8 is the lower."""
    schedule = without_luck("signal", [4, 8, 16], explore=0.0, prior=0.0)
    schedule.observe(played("task", [8] * 8, 16))
    assert schedule.limit(2, TASK) == 8


def test_shares_that_sum_to_one_up_to_rounding_have_no_signal():
    """Ends at equal shares of turns 5 to 8, all solved: p(8) misses 1 by rounding for some numbers of episodes."""
    for count in range(1, 40):
        schedule = without_luck("signal", [8, 16], explore=0.0, prior=0.0, window=4 * 40)
        schedule.observe(played("task", [5, 6, 7, 8] * count, 16))
        assert schedule.limit(2, TASK) == 8


def test_which_groups_explore_depends_on_the_seed():
    rule, found = PerTask(explore=0.5, prior=0.0), []
    for seed in range(3):
        schedule = new_schedule(Horizon([4, 8], per_task=rule), f"{seed} env")
        schedule.observe(played("task", [3, 3, -4, -4], 8))
        found.append([schedule.limit(step, TASK) for step in range(1, 41)])
    assert len(set(map(tuple, found))) == 3


def test_groups_of_one_task_in_a_batch_count_one_by_one():
    """Two groups that the limit ended make the ladder climb, and Luby's sequence goes on by two."""
    both = [*played("task", [-4] * 4, 4, group="a"), *played("task", [-4] * 4, 4, group="b")]
    ladder = without_luck("ladder", [4, 8], patience=2)
    signal = without_luck("signal", [4, 8], explore=0.0)
    for schedule in (ladder, signal):
        schedule.observe(both)
    assert [ladder.limit(2, TASK), signal.limit(2, TASK)] == [8, 8]


def test_ids_that_look_like_categories_keep_the_window_of_a_task():
    """Four episodes of 9 turns leave the window of four before the limit follows from those of 2 turns alone."""
    whole, resumed = (without_luck("ladder", [4, 8, 16], window=4) for _ in range(2))
    whole.observe(played("/data/a.json", [9] * 4, 16))
    resumed.restore(json.loads(json.dumps(whole.saved())))
    for schedule in (whole, resumed):
        schedule.observe(played("/data/a.json", [2] * 4, 16))
        assert schedule.limit(3, TaskItem("env", "/data/a.json")) == 4


@pytest.mark.parametrize("which", [{"per_task": PerTask()}, {"deepen": True}])
def test_a_limit_given_twice_raises_config_error(which):
    with pytest.raises(ConfigError, match=r"horizon\.max_turns=\[4, 4, 8\] has one twice\. Leave the second one out"):
        Horizon([4, 4, 8], **which)
    assert Horizon([4, 4, 8], 2).turns_at(5) == 8


def test_a_share_of_the_groups_plays_one_limit_higher():
    schedule = without_luck("signal", [4, 8], explore=0.25, prior=0.0)
    schedule.observe(played("task", [3, 3, -4, -4], 8))
    higher = sum(schedule.limit(step, TASK) == 8 for step in range(1, 2001)) / 2000
    assert abs(higher - 0.25) < 0.04


def test_an_unsolved_task_explores_all_higher_limits_where_its_category_is_easy():
    """The easy task of the category is solved in 3 turns, the hard one needs more than 8."""
    schedule, hard = without_luck("signal", [4, 8, 16], explore=0.25), TaskItem("env", "hard")
    schedule.observe(played("easy", [3, 3, -4, -4], 4) + played("hard", [-4] * 4, 4))
    limits = [schedule.limit(step, hard) for step in range(1, 2001)]
    assert [abs(limits.count(limit) / 2000 - 0.125) < 0.03 for limit in (8, 16)] == [True, True]
    schedule.observe(played("hard", [12, 12, -16, -16] * 4, 16))
    assert schedule.limit(next(step for step, limit in enumerate(limits, start=1) if limit == 4), hard) == 16


def test_a_category_that_does_not_count_leaves_an_unsolved_task_to_lubys_sequence():
    schedule = without_luck("signal", [2, 4], explore=0.0, prior=0.0)
    schedule.observe(played("easy", [1, 1, -2, -2], 2) + played("hard", [-2] * 4, 2))
    schedule.observe(played("hard", [-2] * 4, 2))
    assert schedule.limit(3, TaskItem("env", "hard")) == 4


def test_the_ladder_does_not_count_groups_that_began_under_a_lower_limit():
    """With asynchronous rollout they return after the task has climbed."""
    schedule = without_luck("ladder", [4, 8, 16], patience=1)
    schedule.observe(played("task", [-4] * 4, 4))
    schedule.observe(played("task", [-4] * 4, 4))
    assert schedule.limit(3, TASK) == 8


def test_the_ladder_climbs_after_groups_that_the_limit_ended_and_descends_to_what_is_needed():
    schedule, limits = without_luck("ladder", [4, 8, 16], patience=2, slack=1.5), []
    for turns in ([-4] * 4, [-4] * 4, [-8, -8, -3, -8], [-3] * 4, [-8] * 4, [5, 4, 5, -16], [2, 2, 2, 2]):
        limits.append(schedule.limit(1, TASK))
        schedule.observe(played("task", turns, limits[-1]))
    assert limits == [4, 4, 8, 8, 8, 16, 8]


RULES = [("signal", {}), ("ladder", {})]


@pytest.mark.parametrize(("rule", "options"), RULES)
def test_a_restored_schedule_by_task_gives_the_limits_of_an_undisturbed_one(rule, options):
    draw, tasks = Random(1), [TaskItem("env", str(number), {}, str(number % 2)) for number in range(6)]
    whole, other = (without_luck(rule, [3, 6, 12], **options) for _ in range(2))
    for step in range(1, 41):
        both = [[one.limit(step, item) for item in tasks] for one in (whole, other)]
        assert both[0] == both[1]
        group = [
            one
            for item, limit in zip(tasks, both[0], strict=True)
            for one in played(item.id, [draw.choice([1, 2, 5, -2, -3]) for _ in range(4)], limit, item.category)
            if one.turns <= limit
        ]
        for schedule in (whole, other):
            schedule.observe(group)
        if step % 7 == 0:
            saved = json.loads(json.dumps(other.saved()))
            other = without_luck(rule, [3, 6, 12], **options)
            other.restore(saved)


def test_a_random_order_plays_every_limit_equally_often():
    horizon = Horizon([4, 8, 12], order="random")
    limits = [turns_at(horizon, step) for step in range(1, 31)]
    assert all(sorted(limits[start : start + 3]) == [4, 8, 12] for start in range(0, 30, 3))
    assert limits != [4, 8, 12] * 10 and horizon.turns_for_evaluation() == 12


def test_a_shrinking_order_begins_with_the_longest_limit():
    horizon = Horizon([4, 8], steps_per_stage=2, order="shrinking")
    assert [turns_at(horizon, step) for step in range(1, 5)] == [8, 8, 4, 4]


def test_an_order_without_several_limits_raises_config_error():
    with pytest.raises(ConfigError, match=r"horizon\.order cannot choose"):
        Horizon([4], order="random")
