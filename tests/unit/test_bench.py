"""The benchmark compares like with like: both loops play the same episodes. How fast is not tested."""

import asyncio
import json
from io import StringIO

import pytest
from rich.console import Console

from tests.bench.loops import play_apart, play_in_rounds
from tests.bench.measure import Comparison, EpisodeTimes, Overhead
from tests.bench.paced import EpisodePlan, draw, instant
from tests.bench.report import show
from tests.bench.rollout import main
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.types import Episode, StopReason

FAST = 1000.0


def outcome(episode: Episode) -> tuple:
    """All that may not depend on the loop."""
    played = [(turn.reply, turn.step) for turn in episode.turns]
    return episode.item, episode.messages, played, episode.reward, episode.stop


def play_both(plans: list[EpisodePlan], max_turns: int) -> tuple[list[Episode], list[Episode]]:
    limits = EpisodeLimits(max_turns)
    apart, rounds = asyncio.run(play_apart(plans, limits)), asyncio.run(play_in_rounds(plans, limits))
    assert min(apart.done_s + rounds.done_s) > 0
    return apart.episodes, rounds.episodes


@pytest.mark.parametrize("max_turns", [10, 5])
def test_both_loops_play_the_same_episodes(max_turns):
    plans = draw(seed=10, episodes=6, speed=FAST)
    apart, rounds = play_both(plans, max_turns)
    assert [outcome(episode) for episode in apart] == [outcome(episode) for episode in rounds]
    assert [len(episode.turns) for episode in apart] == [min(len(plan.tokens), max_turns) for plan in plans]


def test_episodes_end_with_their_drawn_reward_unless_the_horizon_is_shorter():
    plans = draw(seed=10, episodes=6, speed=FAST)
    assert {plan.reward for plan in plans} == {0.0, 1.0}
    for plan, episode in zip(plans, play_both(plans, max_turns=5)[0], strict=True):
        ended = len(plan.tokens) <= 5
        assert (episode.stop is StopReason.TERMINATED, episode.reward) == (ended, plan.reward if ended else 0.0)


def test_a_seed_gives_the_same_episodes_at_every_speed():
    slow, fast = draw(seed=1, episodes=8, speed=1.0), draw(seed=1, episodes=8, speed=4.0)
    assert [plan.tokens for plan in slow] == [plan.tokens for plan in fast]
    assert [plan.alone_s for plan in slow] == pytest.approx([4 * plan.alone_s for plan in fast])
    assert draw(seed=2, episodes=8, speed=1.0) != slow


def test_an_episode_alone_takes_all_its_latencies_one_after_another():
    plan = EpisodePlan("a", reset_s=1.0, tokens=(10, 20), step_s=(2.0, 3.0), token_s=0.1, reward=1.0)
    assert plan.alone_s == pytest.approx(9.0)
    assert [plan.alone_s for plan in instant(2, 3)] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("speedup", "over_longest", "turn_ms", "missed"),
    [(1.6, 1.1, 2.0, []), (1.5, 1.1, 2.0, [0]), (1.6, 1.2, 2.0, [1]), (1.6, 1.1, 2.5, [2])],
)
def test_targets_are_judged_on_the_worst_seed_and_the_slowest_repeat(speedup, over_longest, turn_ms, missed):
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


def test_the_numbers_say_where_they_come_from(tmp_path, capsys):
    path = tmp_path / "new" / "bench.json"
    main(["--speed", "1000", "--episodes", "2", "--seeds", "5", "--json", str(path)])
    numbers = json.loads(path.read_text())
    assert numbers["seeds"] == [comparison["seed"] for comparison in numbers["comparisons"]] == [5]
    assert {"command", "commit", "versions", "machine"} <= set(numbers["provenance"])
    assert len(numbers["targets"]) == 3
    assert "lock-step" in capsys.readouterr().out
