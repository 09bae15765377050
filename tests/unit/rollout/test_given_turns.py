"""Episodes that begin with the turns of a solved episode (`horizon.replay`)."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from tests.support.episodes import STARTED
from verl_agent.agents.registry import AgentSettings, make_agent
from verl_agent.config.settings import RunEnv
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.settings import EnvSettings
from verl_agent.errors import EnvCrashError, EnvError
from verl_agent.horizon import Horizon, Replay
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.rollout.function_policy import FunctionPolicy
from verl_agent.rollout.player import Player
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.rollout.settings import EpisodeSettings
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, parse_record, to_episode, to_record
from verl_agent.training.solved_episodes import SolvedEpisodes
from verl_agent.types import DemoAction, Episode, StepResult, StopReason, TaskItem


class Stairs(EnvAdapter):
    """Each `up` pays 1 of 5 steps; the top ends it. A session may be lost at a step."""

    splits, action_format, success_reward = ("train",), LineFormat(), 5.0

    def __init__(self, lost_at: int = 0, crashes_at: int = 0, enough: float = 5.0) -> None:
        self.at, self.lost_at, self.crashes_at, self.success_reward = 0, lost_at, crashes_at, enough

    def tasks(self, split):
        return [TaskItem("stairs", name) for name in "ab"]

    async def reset(self, item):
        self.at = 0
        return [{"role": "user", "content": "Climb."}]

    async def step(self, action):
        if action != "up":
            return StepResult("You wait.")
        self.at += 1
        if self.at == self.crashes_at:
            raise EnvCrashError("the game fails")
        if self.at == self.lost_at:
            self.lost_at = 0
            raise EnvError("the session is lost")
        return StepResult(f"Step {self.at}.", 1.0, terminated=self.at == 5)

    def demonstration(self, item):
        return [DemoAction("up")] * 5


def solved_episodes(env: EnvAdapter, **replay: Any) -> SolvedEpisodes:
    run_env = RunEnv(
        env=EnvSettings("stairs", "train", "train"), horizon=Horizon([1]), episode=EpisodeSettings(9), label="stairs"
    )
    run_env.__dict__["live"] = env  # made once, when needed
    return SolvedEpisodes(run_env, Replay(**replay))


def play(replies: list[str], given: int, max_turns: int = 3, turns_left: bool = False, **stairs: Any) -> Episode:
    """Play the stairs after replies of the demonstration; the last reply repeats."""
    env, left = Stairs(**stairs), list(replies)
    settings = AgentSettings("act", {"turns_left": turns_left})
    read = lambda messages: left.pop(0) if len(left) > 1 else left[0]  # noqa: E731
    player = Player(
        lambda: make_agent(settings, env.action_format),
        lambda: env,
        lambda item, seed: FunctionPolicy(read),
        EpisodeLimits(max_turns, retries=1),
    )
    item = TaskItem("stairs", "a")
    texts = solved_episodes(env).replies(item, player.new_agent())[:given]
    return asyncio.run(player.play(item, EpisodeSeed(1, "train", "stairs", "a", 1, 0), given=texts)).episode


def evaluated(episode: Episode) -> EpisodeRecord:
    return to_record(episode, EpisodeMeta("evaluation", "train", 0, "a", 0, STARTED, seconds=1.0))


def test_given_turns_are_the_prompt_and_count_as_no_turn():
    episode = play(["Action: up"], given=3)
    assert [one["role"] for one in episode.messages] == ["user", *["assistant", "user"] * 5]
    assert (episode.prompt_length, len(episode.turns), episode.given_turns, episode.max_turns) == (7, 2, 3, 3)
    assert (episode.stop, episode.reward, episode.success_reward, episode.success) == ("terminated", 2.0, 2.0, True)
    assert "Step 3." in episode.messages[episode.prompt_length - 1]["content"]


def test_the_limit_counts_the_turns_of_the_policy():
    episode = play(["Action: wait"], given=3)
    assert (episode.stop, len(episode.turns), episode.success) == (StopReason.TURN_LIMIT, 3, False)


def test_the_model_reads_the_turns_that_are_left_of_all():
    episode = play(["Action: wait"], given=2, turns_left=True)
    told = [one["content"] for one in episode.messages if one["role"] == "user"]
    assert [str(left) in text for left, text in zip((5, 4, 3, 2, 1), told, strict=False)] == [True] * 5, told


def test_a_lost_session_replays_given_and_own_turns():
    episode = play(["Action: up"], given=3, lost_at=5)
    assert (episode.success, len(episode.turns), len(episode.replays)) == (True, 2, 1)


def test_a_replay_that_ends_or_solves_the_task_is_an_error_of_the_environment():
    episode = play(["Action: up"], given=5)
    assert episode.stop is StopReason.ENV_ERROR and "ended (terminated) in turn 5 of 5" in episode.error
    assert (episode.turns, episode.given_turns) == ([], 0)
    episode = play(["Action: up"], given=3, enough=2.0)
    assert episode.stop is StopReason.ENV_ERROR and "solved the task in turn 2 of 3" in episode.error


def test_a_replayed_action_that_always_fails_is_no_action_of_the_policy():
    episode = play(["Action: up"], given=3, crashes_at=2)
    assert (episode.stop, episode.turns, episode.valid) == (StopReason.ENV_ERROR, [], False)
    assert "turn 2 of a replayed episode" in episode.error


def test_a_record_keeps_the_given_turns():
    record = evaluated(play(["Action: up"], given=3))
    assert record["given_turns"] == 3
    again = to_episode(parse_record(json.loads(json.dumps(record))))
    assert (again.given_turns, again.prompt_length, len(again.turns), again.success) == (3, 7, 2, True)
    assert "given_turns" not in evaluated(play(["Action: up"], given=0))


def test_the_solved_record_with_the_fewest_turns_is_replayed(tmp_path):
    slow, quick, failed = play(["Action: wait", "Action: up"], 0, 9), play(["Action: up"], 0, 9), play(["no"], 0)
    begun = play(["Action: up"], given=4)  # its first turns are another's
    path = tmp_path / "episodes.jsonl"
    records = [evaluated(one) for one in (slow, failed, quick, begun)]
    records.append(
        {**records[2], "env": "other", "turns": records[2]["turns"][:1], "messages": records[2]["messages"][:3]}
    )
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    solved, agent = solved_episodes(Stairs(), records=[str(path)]), make_agent(AgentSettings("act"), LineFormat())
    assert solved.replies(TaskItem("stairs", "a"), agent) == ["Action: up"] * 5
    assert solved.given(TaskItem("stairs", "a"), agent, 2) == ["Action: up"] * 3
    assert solved.given(TaskItem("stairs", "b"), agent, 2) == []


def test_a_turn_that_was_not_carried_out_is_not_replayed(tmp_path):
    rejected = play(["Action: up"], 0, 9)
    rejected.turns[0] = replace(rejected.turns[0], step=StepResult("No.", 1.0, info={"rejected_action": 1.0}))
    path = tmp_path / "episodes.jsonl"
    path.write_text(json.dumps(evaluated(rejected)) + "\n")
    agent = make_agent(AgentSettings("act"), LineFormat())
    assert solved_episodes(Stairs(), records=[str(path)]).replies(TaskItem("stairs", "a"), agent) == []


def test_a_task_without_a_demonstration_is_played_from_its_prompt():
    class Bare(Stairs):
        def demonstration(self, item):
            raise NotImplementedError("write one")

    agent = make_agent(AgentSettings("act"), LineFormat())
    assert solved_episodes(Bare()).given(TaskItem("stairs", "a"), agent, 1) == []


def test_episodes_of_a_group_that_ask_at_once_replay_the_same_turns():
    asked, go_on = threading.Event(), threading.Event()

    class Slow(Stairs):
        def demonstration(self, item):
            asked.set()
            go_on.wait(20)
            return super().demonstration(item)

    solved, agent, item = (
        solved_episodes(Slow()),
        make_agent(AgentSettings("act"), LineFormat()),
        TaskItem("stairs", "a"),
    )
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(solved.given, item, agent, 2)
        assert asked.wait(20)
        asked.clear()
        second = threads.submit(solved.given, item, agent, 2)
        assert asked.wait(20), "the second episode found a task without a solution"
        go_on.set()
        assert first.result() == second.result() == ["Action: up"] * 3
