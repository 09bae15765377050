"""Recorded games of GuessNumber, and players that ask what else a policy would have done."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

from tests.support.episodes import STARTED
from tests.support.fakes import ScriptedPolicy
from verl_agent.agents.plain import ReAct
from verl_agent.api import play_sync
from verl_agent.config.plan import RunPlan
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.registry import make_env
from verl_agent.evaluation.recorded_play import RecordedPlay, play_of_training
from verl_agent.evaluation.settings import EvaluationSettings
from verl_agent.evaluation.what_if.branch import Sampling
from verl_agent.evaluation.what_if.recorded import RecordedEpisode, find_episode
from verl_agent.evaluation.what_if.results import VERSION, Replies, SampledReply
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.rollout.player import Player
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.trace.record import EpisodeMeta, Purpose, to_record
from verl_agent.types import Message, Reply, TaskItem

GUESS = TaskItem("guess_number", "9:7", {"high": 9, "target": 7})
MAX_TURNS = 4


def say(guess: int | str, thought: str = "Hm.") -> str:
    return f"Thought: {thought}\nAction: {guess}"


def recorded_game(
    folder: Path, guesses: Sequence[int | str] = (5, 6, 2, 3), item: TaskItem = GUESS, env: EnvAdapter | None = None
) -> RecordedEpisode:
    """Return the second record of a file in `folder`: a game with these guesses, in at most four turns."""
    env = env or make_env("guess_number")
    game = play_sync(item, env, policy=ScriptedPolicy(map(say, guesses)), max_turns=MAX_TURNS)
    file = folder / "episodes.jsonl"
    metas = [EpisodeMeta("evaluation", "test", 0, item.id, sample, STARTED, 1.0, model="guesser") for sample in (0, 1)]
    file.write_text("".join(json.dumps(to_record(game, meta)) + "\n" for meta in metas))
    return find_episode(f"{file}:2")


class FakeModel:
    """Policy that must be told of turns that it did not play, as a model must."""

    def __init__(self, script: Iterator[str]) -> None:
        self._script = script
        self.told: list[str] = []
        self.read: list[list[Message]] = []

    async def add_given(self, messages: Sequence[Message], reply: Reply) -> None:
        self.read.append(list(messages))
        self.told.append(reply.text)

    async def reply(self, messages: Sequence[Message]) -> Reply:
        self.read.append(list(messages))
        return Reply(next(self._script), tokens=3)

    async def continue_reply(self, messages: Sequence[Message], beginning: str) -> Reply:
        return Reply(f"{beginning} {next(self._script)}", tokens=1)


def players(
    *script: int | str, env: EnvAdapter | None = None, made: list[FakeModel] | None = None, **values: object
) -> Sampling:
    """Return a player whose models share a script of guesses, which repeats; texts are used as they are."""
    env = env or make_env("guess_number")
    lines = cycle([line if isinstance(line, str) else say(line) for line in script])
    kept = [] if made is None else made

    def new_policy(item: TaskItem, seed: EpisodeSeed) -> FakeModel:
        kept.append(FakeModel(lines))
        return kept[-1]

    limits = EpisodeLimits(MAX_TURNS, None)
    player = Player[Any](lambda: ReAct(env.action_format), env.new_session, new_policy, limits)
    return changed(Sampling(player, "guesser", EvaluationSettings(concurrency=1)), **values)


def changed(play: Sampling, **values: object) -> Sampling:
    """Return samples of a player with other fields."""
    return replace(play, player=replace(play.player, **values))  # type: ignore[arg-type]


def replies_of(recorded: RecordedEpisode, turn: int, replies: list[SampledReply]) -> Replies:
    """Return the result of some replies at a turn."""
    return {
        "version": VERSION,
        "kind": "replies",
        "episode": recorded.fingerprint,
        "task": recorded.record["task"],
        "turn": turn,
        "model": "m",
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 1,
        "settings": "",
        "indexes": list(range(len(replies))),
        "measured_at": "2026-01-01T00:00:00+00:00",
        "with_thought": True,
        "replies": replies,
    }


RUN = {
    "env": {"name": "guess_number", "options": {"tolerant": True}, "mixture": None},
    "agent": {"name": "act", "options": {"instructions": False}, "context": {"keep": "all", "turns": 4, "stride": 1}},
    "horizon": {"max_turns": [2, 8]},
    "episode": {"max_tokens_per_turn": 8, "max_tokens": 50, "on_truncated_turn": "play", "seeded_sampling": False},
    "data": {
        "max_prompt_length": 70,
        "max_response_length": 90,
        "overlong_prompt": "drop",
        "apply_chat_template_kwargs": {"thinking": False},
    },
    "actor_rollout_ref": {"model": {"path": "smollm2-135m"}, "rollout": {"temperature": 0.8, "top_p": 0.9}},
}


def of_run(
    folder: Path, step: int = 1, purpose: Purpose = "train", settings: dict | None = None, env_label: str = ""
) -> RecordedEpisode:
    """Return an episode of a training run."""
    (folder / "episodes").mkdir(exist_ok=True)
    play_of_training(RunPlan.of(RUN if settings is None else settings)).write(folder)
    game = recorded_game(folder / "episodes")
    record = to_record(game.episode, EpisodeMeta(purpose, "train", step, "g", 0, STARTED, 1.0, env_label=env_label))
    game.file.write_text(json.dumps(record) + "\n")
    return find_episode(f"{game.file}:1")


def of_evaluation(folder: Path, model: str = "random", api: dict | None = None, **sections: object) -> RecordedEpisode:
    """Return an episode of an evaluation."""
    recorded = recorded_game(folder)
    settings = {"env": {"name": "guess_number", "options": {}}, "agent": RUN["agent"], "data": RUN["data"]}
    settings |= {"episode": {"max_tokens_per_turn": 9}, "evaluation": {"temperature": 0.5, "seed": 3}}
    named = {"path": model} if api is None else {"path": None, "api": api}
    RecordedPlay({"guess_number": settings | sections}, named, model).write(folder)
    return recorded
