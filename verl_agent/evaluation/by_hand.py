"""One task played by a person in the terminal or a browser: alone, with a model's proposals, or watching the model."""

import os
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from typing_extensions import override

from verl_agent.envs.session import Session
from verl_agent.errors import ConfigError
from verl_agent.evaluation.job import playable_policy
from verl_agent.evaluation.loop import EvaluationSetup, PlannedEpisode, play_one
from verl_agent.evaluation.policies import start_policies, start_sessions
from verl_agent.evaluation.settings import EvaluationConfig
from verl_agent.oversight.base import NobodyElse
from verl_agent.oversight.control import RunControl
from verl_agent.oversight.socket import controlled
from verl_agent.oversight.terminal import CLOSED, TerminalPerson, Watcher
from verl_agent.platform.worker_environment import worker_environment
from verl_agent.results.folder import GAME, RECORDS, SETTINGS
from verl_agent.rollout.candidates import CandidatePolicy
from verl_agent.rollout.player import Player
from verl_agent.rollout.policy import Policy
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.runs.identity import SETTINGS_FILE, claim
from verl_agent.runs.processes import run_ending_all_children
from verl_agent.system.resources import make_folder
from verl_agent.terminal import Console
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.types import Episode, StopReason, TaskItem


@dataclass(frozen=True, slots=True)
class GameSetup:
    """One task and the way in which it is played.

    Attributes:
        model: value of `model.path` of the model that proposes actions; None for a person alone.
        samples: replies that the model draws at each turn.
        where: `terminal`; `browser`, where the person attends the episode over the folder's control socket; or `watch`,
            which lets the model play and shows what it does.
    """

    config: EvaluationConfig
    item: TaskItem
    split: str
    model: str | None
    samples: int
    where: Literal["terminal", "browser", "watch"]
    folder: Path


def run_game(game: GameSetup, console: Console) -> Episode:
    """Play the task, record the episode, and end all child processes.

    Raises:
        ConfigError: the model cannot be played, another process plays in the folder, or the folder holds an evaluation,
            a training run, or games of another environment or agent.
    """
    model = None if game.model is None else playable_policy(game.model, game.config, [game.item])
    claim_folder(game)
    os.environ |= worker_environment(game.folder)
    return run_ending_all_children(_play(game, model, console))


def ending(episode: Episode) -> str:
    """Return the last message of the environment, unless a question has shown it, and the end of an episode."""
    operator = episode.stop is StopReason.OPERATOR
    last = "" if operator or not episode.turns else f"\n{episode.messages[-1]['content']}\n"
    reason = f" ({episode.error.removesuffix('.')})" if episode.error else ""
    return f"{last}\nThe episode ended: {episode.stop}{reason}. Reward {episode.reward:g}, success: {episode.success}."


def claim_folder(game: GameSetup) -> None:
    """Lock the folder of the record, and refuse one whose records are not of games like this one; see `run_game`."""
    run, records = game.config.run, game.folder / RECORDS
    recorded = records.is_file() and records.stat().st_size > 0
    other = any((game.folder / name).is_file() for name in (SETTINGS, SETTINGS_FILE))
    if other or (recorded and not (game.folder / GAME).is_file()):
        raise ConfigError(
            f"--into {str(game.folder)!r} holds a run whose results would count this episode. Name another folder."
        )
    make_folder(game.folder, "--into")
    claim(
        game.folder,
        {"env": {"name": run.env.name, "options": dict(run.env.options)}, "agent": asdict(run.agent)},
        (),
        contents="games with other settings",
        advice="Name another folder with --into.",
        file=GAME,
    )


async def _play(game: GameSetup, model: str | None, console: Console) -> Episode:
    seed = game.config.evaluation.seed
    async with AsyncExitStack() as stack:
        new_session = await stack.enter_async_context(start_sessions(None, game.config, hosts=1))
        if model is None:
            return await _record(game, new_session, NobodyElse(), console)
        new_policy = await stack.enter_async_context(start_policies(model, game.config, [game.item], game.folder))

        def sample(number: int) -> Policy:
            return new_policy(game.item, EpisodeSeed(seed, "play", game.item.env, game.item.id, step=0, sample=number))

        copilot = CandidatePolicy(sample, game.config.run.new_agent(), game.samples)
        return await _record(game, new_session, sample(0) if game.where == "watch" else copilot, console)


async def _record(game: GameSetup, new_session: Callable[[], Session], policy: Policy, console: Console) -> Episode:
    seen_by = {"terminal": TerminalPerson(console, full=True), "watch": Watcher(console)}
    control = RunControl(seen_by.get(game.where), attended=game.where == "browser")
    run = game.config.run
    once = replace(run.limits(), retries=0)  # a person plays no second attempt
    player = Player(run.new_agent, new_session, lambda item, seed: policy, once, control)
    setup = EvaluationSetup(player, tasks=game.split, model=game.model or "", purpose="collection")
    with controlled(game.folder, control), _writer(game.folder / RECORDS) as writer:
        return await play_one(PlannedEpisode(game.item, sample=0), setup, writer)


class _PlayedOnly(EpisodeWriter):
    """Writer that leaves out a game whose terminal was closed before the first action."""

    @override
    def write(self, record: EpisodeRecord) -> None:
        if CLOSED not in record["error"] or any(turn["observation"] is not None for turn in record["turns"]):
            super().write(record)


@contextmanager
def _writer(path: Path) -> Iterator[EpisodeWriter]:
    """Open a file of records; remove it at the end if it has none, because the person interrupted the first game."""
    try:
        with _PlayedOnly(path) as writer:
            yield writer
    finally:
        if path.is_file() and path.stat().st_size == 0:
            path.unlink()
