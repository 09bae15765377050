"""One task played by a person at the terminal: alone, with the proposals of a model, or watching the model."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from verl_agent.agents.registry import make_agent
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.hosts.local import local_pool
from verl_agent.envs.registry import make_env
from verl_agent.envs.session import PooledEnv
from verl_agent.errors import ConfigError
from verl_agent.evaluation.folder import RECORDS
from verl_agent.evaluation.job import resolve_for_engine
from verl_agent.evaluation.policies import check_policy, is_model, start_policies
from verl_agent.evaluation.settings import EvaluationConfig
from verl_agent.preflight.rl import worker_environment
from verl_agent.rollout.candidates import CandidatePolicy
from verl_agent.rollout.episode import EpisodeLimits, Policy, play
from verl_agent.rollout.oversight import Decision, Overseer, Proposal
from verl_agent.rollout.person import Answer
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.runs.control.service import controlled
from verl_agent.runs.control.state import RunControl
from verl_agent.runs.identity import lock
from verl_agent.runs.processes import ending_all_children
from verl_agent.runs.terminal_person import TerminalLines, TerminalPerson, question
from verl_agent.trace.record import EpisodeMeta, to_record
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.types import Episode, Message, Reply, TaskItem


@dataclass(frozen=True, slots=True)
class Game:
    """One task and the way in which it is played.

    Attributes:
        config: sections of an evaluation.
        item: task.
        split: split of the task, for the record.
        model: value of `model.path` of the model that proposes actions; None for a person alone.
        samples: replies that the model draws at each turn.
        watch: let the model play, and only show what it does.
        folder: folder of the record.
    """

    config: EvaluationConfig
    item: TaskItem
    split: str
    model: str | None
    samples: int
    watch: bool
    folder: Path


class Player(TerminalPerson):
    """Person who plays one episode.

    Args:
        console: console of the terminal.
        copilot: policy whose candidates the person sees; None to play alone.
        lines: see `TerminalPerson`.
    """

    def __init__(self, console: Console, copilot: CandidatePolicy | None, lines: TerminalLines | None = None) -> None:
        super().__init__(console, lines, full=True)
        self._copilot = copilot

    @asynccontextmanager
    async def watch(self, episode: Episode) -> AsyncIterator[None]:
        """See `Overseer`; without a model the person has every turn."""
        async with super().watch(episode):
            if self._copilot is None:
                self.take_over(episode)
            yield

    async def ask(self, proposal: Proposal, refusal: str) -> Answer:
        """See `Person`; `/2` takes the second candidate."""
        if self._copilot is not None and proposal.reply is not None and not refusal:
            for number, one in enumerate(self._copilot.candidates, start=1):
                self.announce(f"  /{number}  {one.share:4.0%}  {one.action}")
        answer = await super().ask(proposal, refusal)
        if answer.decision == "hand_back" and self._copilot is None:
            return await self.ask(proposal, "there is no model. Start with --copilot MODEL to let one go on.")
        return answer

    def read(self, proposal: Proposal, line: str) -> Answer:
        """See `TerminalPerson`."""
        number = line.strip().removeprefix("/")
        if self._copilot is None or proposal.reply is None or not line.strip().startswith("/") or not number.isdigit():
            return super().read(proposal, line)
        if not 1 <= int(number) <= len(self._copilot.candidates):
            raise ConfigError(f"there is no candidate {number}. Allowed: 1 to {len(self._copilot.candidates)}.")
        return Answer("approve") if number == "1" else Answer("edit", self._copilot.candidates[int(number) - 1].action)


class Watcher(Overseer):
    """Overseer that shows every turn and lets it pass.

    Args:
        console: console of the terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    async def review(self, proposal: Proposal) -> Decision | None:
        """See `Overseer`."""
        text = question(proposal, None, commands=False)
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        return None


class NobodyElse:
    """Policy of a person who plays alone; it is never asked."""

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """See `Policy.reply`."""
        raise AssertionError("the person has every turn.")


def run_game(game: Game, console: Console) -> Episode:
    """Play the task, record the episode, and end all child processes.

    Raises:
        ConfigError: the model cannot be played, or another process plays in the folder.
    """
    env = make_env(game.config.run.env.name, game.config.run.env.options)
    model = None if game.model is None else check_model(game, env)
    game.folder.mkdir(parents=True, exist_ok=True)
    lock(game.folder)
    os.environ |= worker_environment(game.folder)
    with ending_all_children():
        return asyncio.run(_play(game, model, env, console))


def check_model(game: Game, env: EnvAdapter) -> str:
    """Return the model as the engine loads it.

    Raises:
        ConfigError: it cannot be played.
    """
    assert game.model is not None
    if is_model(game.model):
        return resolve_for_engine(game.model, game.config)
    check_policy(game.model, env, [game.item])
    return game.model


async def _play(game: Game, model: str | None, env: EnvAdapter, console: Console) -> Episode:
    run = game.config.run
    pool, agent = local_pool(env, run.env, count=1), make_agent(run.agent, env.action_format)
    try:
        if model is None:
            return await _record(game, PooledEnv(env, pool), NobodyElse(), RunControl(Player(console, None)))
        async with start_policies(model, game.config, [game.item], game.folder) as new_policy:

            def sample(number: int) -> Policy:
                seed = game.config.evaluation.seed
                return new_policy(
                    game.item, EpisodeSeed(seed, "play", game.item.env, game.item.id, step=0, sample=number)
                )

            if game.watch:
                return await _record(game, PooledEnv(env, pool), sample(0), RunControl(Watcher(console)))
            copilot = CandidatePolicy(sample, agent, game.samples)
            return await _record(game, PooledEnv(env, pool), copilot, RunControl(Player(console, copilot)))
    finally:
        await pool.shutdown()


async def _record(game: Game, session: PooledEnv, policy: Policy, control: RunControl) -> Episode:
    run, limits = game.config.run, EpisodeLimits(game.config.run.horizon.turns_for_evaluation(), None)
    env = make_env(run.env.name, run.env.options)
    agent = make_agent(run.agent, env.action_format)
    with controlled(game.folder, control), EpisodeWriter(game.folder / RECORDS) as writer:
        episode = await play(game.item, session, agent, policy, limits, control)
        started = datetime.fromtimestamp(episode.started_at, UTC)
        meta = EpisodeMeta("collection", game.split, 0, game.item.id, 0, started, episode.seconds, 1, game.model or "")
        writer.write(to_record(episode, meta))
    return episode
