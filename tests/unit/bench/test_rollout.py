"""Tests of the rollout benchmark: both loops play the same episodes. Speed is not tested."""

import asyncio
import json
from io import StringIO

import pytest
from rich.console import Console

from tests.bench.loops import play_asynchronously, play_in_lock_step
from tests.bench.measure import Comparison, EpisodeTimes, Overhead
from tests.bench.paced import EpisodePlan, instant, sample_plans
from tests.bench.report import show
from tests.bench.rollout import main
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.types import Episode, StopReason

FAST = 1000.0


def outcome(episode: Episode) -> tuple:
    """Return the parts of an episode that must not depend on the loop."""
    played = [(turn.reply, turn.step) for turn in episode.turns]
    return episode.item, episode.messages, played, episode.reward, episode.stop


def play_both(plans: list[EpisodePlan], max_turns: int) -> tuple[list[Episode], list[Episode]]:
    limits = EpisodeLimits(max_turns)
    own, lock_step = asyncio.run(play_asynchronously(plans, limits)), asyncio.run(play_in_lock_step(plans, limits))
    assert min(own.done_s + lock_step.done_s) > 0
    return own.episodes, lock_step.episodes


@pytest.mark.parametrize("max_turns", [10, 5])
def test_both_loops_play_the_same_episodes(max_turns):
    plans = sample_plans(seed=10, episodes=6, speed=FAST)
    own, lock_step = play_both(plans, max_turns)
    assert [outcome(episode) for episode in own] == [outcome(episode) for episode in lock_step]
    assert [len(episode.turns) for episode in own] == [min(len(plan.tokens), max_turns) for plan in plans]


def test_episodes_end_with_the_planned_reward_unless_the_horizon_is_shorter():
    plans = sample_plans(seed=10, episodes=6, speed=FAST)
    assert {plan.reward for plan in plans} == {0.0, 1.0}
    for plan, episode in zip(plans, play_both(plans, max_turns=5)[0], strict=True):
        ended = len(plan.tokens) <= 5
        assert (episode.stop is StopReason.TERMINATED, episode.reward) == (ended, plan.reward if ended else 0.0)


def test_a_seed_determines_the_plans_at_every_speed():
    slow, fast = sample_plans(seed=1, episodes=8, speed=1.0), sample_plans(seed=1, episodes=8, speed=4.0)
    assert [plan.tokens for plan in slow] == [plan.tokens for plan in fast]
    assert [plan.alone_s for plan in slow] == pytest.approx([4 * plan.alone_s for plan in fast])
    assert sample_plans(seed=2, episodes=8, speed=1.0) != slow


def test_duration_alone_is_the_sum_of_latencies():
    plan = EpisodePlan("a", reset_s=1.0, tokens=(10, 20), step_s=(2.0, 3.0), token_s=0.1, reward=1.0)
    assert plan.alone_s == pytest.approx(9.0)
    assert [plan.alone_s for plan in instant(2, 3)] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("speedup", "over_longest", "turn_ms", "missed"),
    [(1.6, 1.1, 2.0, []), (1.5, 1.1, 2.0, [0]), (1.6, 1.2, 2.0, [1]), (1.6, 1.1, 2.5, [2])],
)
def test_targets_use_the_worst_seed_and_the_slowest_repeat(speedup, over_longest, turn_ms, missed):
    times = EpisodeTimes(1.0, 1.0, 1.0, 1.0)
    comparisons = [
        Comparison(1, 9, times, times, 1.0, 1.0, 9.0, 1.0),
        Comparison(2, 9, times, times, 1.0, 1.0, speedup, over_longest),
    ]
    output = StringIO()
    console = Console(file=output, width=200)
    targets = show(console, comparisons, [Overhead("threads", 0.1, turn_ms, 0.1)], speed=1.0, load=0.0)
    assert [number for number, target in enumerate(targets) if not target.met] == missed
    assert output.getvalue().count("MISSED") == len(missed)


def test_the_json_file_has_numbers_and_provenance(tmp_path, capsys):
    path = tmp_path / "new" / "bench.json"
    main(["--speed", "1000", "--episodes", "2", "--seeds", "5", "--json", str(path)])
    numbers = json.loads(path.read_text())
    assert numbers["seeds"] == [comparison["seed"] for comparison in numbers["comparisons"]] == [5]
    assert {"command", "commit", "versions", "machine"} <= set(numbers["provenance"])
    assert len(numbers["targets"]) == 3
    assert "lock-step" in capsys.readouterr().out
