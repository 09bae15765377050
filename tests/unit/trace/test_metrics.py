"""Test the table of metrics, and that environment errors never count against the policy."""

import pickle
import re
from dataclasses import replace

import pytest

from verl_agent.envs.program.conversation import NEW_SEGMENTS
from verl_agent.results.statistics import return_margins
from verl_agent.trace.behaviors import action_checksums, divergence_turns
from verl_agent.trace.episode_summary import EpisodeSummary, summarize_episode
from verl_agent.trace.metrics import METRICS, TURN_BANDS, episode_metrics, turn_band
from verl_agent.types import Episode, Reply, StepResult, StopReason, TaskItem, Turn


def summary(reward: float = 1.0, stop: StopReason = StopReason.TERMINATED, **others) -> EpisodeSummary:
    return EpisodeSummary(
        **{"reward": reward, "success": reward >= 1, "turns": 4, "max_turns": 10, "stop": stop} | others
    )


ENV_ERROR = summary(0.0, StopReason.ENV_ERROR, turns=9, attempts=3, info={"invalid_action": 9.0}, category="hard")


OF_TOKENS = {
    "credit/dropped_share",
    "distillation/reverse_kl",
    *(f"staleness/{name}" for name in ("mean", "max", "mixed_episodes")),
    *(f"staleness/<updates>/{name}" for name in ("tokens", "rollout_kl", "probs_diff")),
    *(
        f"turn/<turns>/{name}"
        for name in ("advantage", "entropy", "ref_kl", "rollout_kl", "ratio_outside", "clip_fraction")
    ),
}
"""Metrics that the trainer computes from tokens; see tests/verl/training/test_turn_metrics.py."""


def test_metric_names_are_unique_and_have_an_area():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+/(\w+|<\w+>(/(<\w+>|\w+))?)", name) for name in names)


def test_the_table_has_every_computed_metric_and_no_other():
    batch = [
        summary(
            info={"invalid_action": 1.0, "calls": 2.0, NEW_SEGMENTS: 1.0},
            category="depth 2",
            env_label="a",
            oracle_turns=2,
            max_turns=5,
        ),
        ENV_ERROR,
    ]
    produced = episode_metrics(batch, divergence=[1]) | return_margins([("a", "1", 0.5), ("a", "2", 1.0)])
    patterns = {metric.name: re.sub("<.*?>", "[^/]+", metric.name) for metric in METRICS}
    assert [name for name in produced if not any(re.fullmatch(one, name) for one in patterns.values())] == []
    own = [pattern for name, pattern in patterns.items() if name not in OF_TOKENS]
    assert [one for one in own if not any(re.fullmatch(one, name) for name in produced)] == []


def test_an_env_error_changes_only_the_env_metrics():
    alone = episode_metrics([summary(1.0), summary(0.0)])
    with_error = episode_metrics([summary(1.0), summary(0.0), ENV_ERROR])
    for name in ("episode/reward_mean", "episode/success_rate", "episode/turns_mean", "episode/turns_max"):
        assert with_error[name] == alone[name]
    assert "action/invalid_action" not in with_error
    assert "success/hard" not in with_error
    assert with_error["env/errors"] == 1
    assert with_error["env/error_rate"] == pytest.approx(1 / 3)
    assert with_error["env/retries"] == 2


def test_stop_reasons_are_shares_of_all_episodes():
    metrics = episode_metrics([summary(), summary(0.0, StopReason.TURN_LIMIT), ENV_ERROR, summary()])
    assert metrics["stop/terminated"] == 0.5
    assert sum(metrics[f"stop/{reason}"] for reason in StopReason) == pytest.approx(1)


def test_the_share_of_living_episodes_is_reported_at_the_first_turn_of_each_band():
    metrics = episode_metrics([summary(turns=1), summary(turns=4), summary(turns=5), summary(turns=5), ENV_ERROR])
    alive = {name: value for name, value in metrics.items() if name.endswith("/alive")}
    assert alive == {"turn/1/alive": 1.0, "turn/2/alive": 0.75, "turn/3-4/alive": 0.75, "turn/5-8/alive": 0.5}


def test_every_turn_has_one_band():
    names = list(TURN_BANDS)
    bands = {number: names[turn_band(number)] for number in (1, 2, 3, 4, 5, 8, 9, 16, 17, 64, 65, 999)}
    assert list(bands.values()) == [
        "1", "2", "3-4", "3-4", "5-8", "5-8", "9-16", "9-16", "17-32", "33-64", "65_up", "65_up",
    ]  # fmt: skip


def test_measurements_are_averaged_over_turns():
    metrics = episode_metrics([summary(turns=1, info={"invalid_action": 1.0}), summary(turns=9)])
    assert metrics["action/invalid_action"] == pytest.approx(0.1)


def test_success_is_reported_by_category():
    metrics = episode_metrics([summary(category="a"), summary(0.0, category="a"), summary(category="b"), summary()])
    assert {name: value for name, value in metrics.items() if name.startswith("success/")} == {
        "success/a": 0.5,
        "success/b": 1.0,
    }


def test_an_episode_solved_in_its_last_turn_hits_the_horizon():
    metrics = episode_metrics([summary(turns=10), summary(0.0, StopReason.TURN_LIMIT, turns=10), summary(), summary()])
    assert metrics["episode/hit_horizon"] == 0.5
    assert metrics["episode/horizon"] == 10


def test_limits_that_differ_within_a_step_have_a_mean_and_shares():
    metrics = episode_metrics([summary(max_turns=limit) for limit in (4, 4, 4, 12)])
    assert (metrics["episode/horizon"], metrics["episode/horizon_mean"]) == (12, 6)
    assert {name: value for name, value in metrics.items() if name.startswith("horizon/")} == {
        "horizon/4": 0.75,
        "horizon/12": 0.25,
    }
    alike = episode_metrics([summary(), summary()])
    assert alike["episode/horizon_mean"] == 10 and not any(name.startswith("horizon/") for name in alike)


def test_a_batch_without_valid_episodes_has_no_reward():
    metrics = episode_metrics([ENV_ERROR], groups_dropped=1)
    assert "episode/reward_mean" not in metrics
    assert metrics["env/groups_dropped"] == 1
    assert episode_metrics([], groups_dropped=2) == {"env/groups_dropped": 2}


def test_a_summary_holds_sums_over_turns():
    turns = [
        Turn(Reply("a", tokens=3), "a", StepResult("x", 0.5, info={"invalid_action": 1.0}), generate_s=1.0, env_s=0.5),
        Turn(Reply("b", tokens=4), "b", StepResult("y", 0.5, True, {"invalid_action": 1.0}), generate_s=2.0, env_s=0.5),
        Turn(Reply("c", tokens=1), None, None, generate_s=1.0, env_s=0.0),
    ]
    played = Episode(TaskItem("env", "1", category="low"), 5, turns=turns, stop=StopReason.TERMINATED)
    assert summarize_episode(played, attempts=2) == EpisodeSummary(
        reward=1.0,
        success=True,
        turns=3,
        max_turns=5,
        stop=StopReason.TERMINATED,
        tokens=8,
        attempts=2,
        generate_s=4.0,
        env_s=1.0,
        category="low",
        info={"invalid_action": 2.0},
        behaviors="invalid_action,no_action",
        thought_length=1 / 3,
        actions="e8b7be43,71beeff9,,",
        task="1",
        solved_turns=2,
    )


@pytest.mark.parametrize(
    ("rewards", "stop", "turns"),
    [
        ([0.5, 0.5, 0.0, 0.0], StopReason.TURN_LIMIT, 2),  # it went on after its success
        ([1.0, -1.0, 1.0], StopReason.TERMINATED, 1),
        ([1.0, -0.5], StopReason.TERMINATED, None),  # lost again
        ([0.1] * 10, StopReason.TERMINATED, 10),
        ([0.0, 1.0], StopReason.ENV_ERROR, None),
    ],
)
def test_a_summary_has_the_turns_until_the_task_was_solved(rewards, stop, turns):
    played = [Turn(Reply("a"), "a", StepResult("x", one), generate_s=0.0, env_s=0.0) for one in rewards]
    episode = Episode(TaskItem("env", "1"), 16, turns=played, stop=stop)
    assert summarize_episode(episode).solved_turns == turns


def test_the_first_different_turn_of_groups_is_a_metric() -> None:
    def actions(*texts: str | None) -> str:
        turns = [Turn(Reply(text or ""), text, None, generate_s=0.0, env_s=0.0) for text in texts]
        return action_checksums(Episode(TaskItem("env", "1"), 5, turns=turns))

    groups = [[actions("a", "b"), actions("a", None)], [actions("a"), actions("a")], [actions(), actions("a")]]
    assert divergence_turns(groups) == [2, 1]
    assert episode_metrics([summary()], divergence=[2, 1])["episode/divergence_turn_mean"] == 1.5
    assert "episode/divergence_turn_mean" not in episode_metrics([summary()])


def test_a_summary_survives_plain_fields_and_pickle():
    fields = ENV_ERROR.to_fields()
    assert {type(value) for value in fields.values()} <= {float, int, str, bool}
    assert EpisodeSummary.from_fields(fields | {"other": 1}) == ENV_ERROR
    assert pickle.loads(pickle.dumps(ENV_ERROR)) == ENV_ERROR


def test_behaviors_are_shares_of_valid_episodes():
    one, other = summary(behaviors="loop,no_effect", thought_length=9.0), summary(behaviors="loop")
    metrics = episode_metrics([one, other, summary(), summary(), replace(ENV_ERROR, behaviors="loop")])
    assert (metrics["behavior/loop"], metrics["behavior/no_effect"], metrics["behavior/truncated"]) == (0.5, 0.25, 0)
    assert metrics["episode/thought_length_mean"] == 9 / 4


def test_over_interaction_is_measured_where_an_oracle_is_known():
    assert not {"behavior/over_interaction", "episode/turns_over_oracle"} & set(episode_metrics([summary()]))
    slow = summary(turns=6, oracle_turns=2, behaviors="over_interaction")
    metrics = episode_metrics(
        [slow, summary(turns=2, oracle_turns=2), summary(0.0, turns=9, oracle_turns=2), summary()]
    )
    assert metrics["behavior/over_interaction"] == pytest.approx(1 / 3)
    assert metrics["episode/turns_over_oracle"] == 2.0, "of solved episodes only"
    assert EpisodeSummary.from_fields(slow.to_fields()) == slow


def test_each_environment_of_a_mixture_has_its_own_metrics():
    won, lost = (
        summary(env_label="a"),
        summary(env_label="b", success=False, stop=StopReason.TURN_LIMIT, turns=4, max_turns=4),
    )
    metrics = episode_metrics([won, lost, lost])
    assert (metrics["env/a/success_rate"], metrics["env/b/success_rate"]) == (1.0, 0.0)
    assert (metrics["env/b/episodes"], metrics["env/b/horizon"], metrics["env/b/turn_limit"]) == (2, 4, 1.0)
    assert "env/a/hit_horizon" in metrics
    assert not any(name.startswith("env/") and name.count("/") == 2 for name in episode_metrics([summary()]))


def test_the_shaped_return_is_reported_beside_the_raw_return():
    metrics = episode_metrics([summary(reward=50.0, shaped_return=0.4), summary(reward=50.0)])
    assert (metrics["episode/reward_mean"], metrics["episode/shaped_return_mean"]) == (50.0, pytest.approx(25.2))
