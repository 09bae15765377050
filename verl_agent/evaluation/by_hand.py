"""One task played by a person in the terminal or a browser: alone, with a model's proposals, or watching the model."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console
from typing_extensions import override

from verl_agent.envs.session import Session
from verl_agent.errors import ConfigError
from verl_agent.evaluation.job import playable_policy
from verl_agent.evaluation.loop import EvaluationSetup, PlannedEpisode, play_one
from verl_agent.evaluation.policies import start_policies, start_sessions
from verl_agent.evaluation.settings import EvaluationConfig
from verl_agent.platform.worker_environment import worker_environment
from verl_agent.results.folder import GAME, RECORDS, SETTINGS
from verl_agent.rollout.candidates import CandidatePolicy
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.rollout.oversight import Decision, Overseer, Proposal
from verl_agent.rollout.person import PersonAnswer
from verl_agent.rollout.policy import Policy
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.runs.control.seat import Seat
from verl_agent.runs.control.service import controlled
from verl_agent.runs.control.state import RunControl
from verl_agent.runs.identity import SETTINGS_FILE, claim
from verl_agent.runs.processes import run_ending_all_children
from verl_agent.runs.terminal_person import CLOSED, TerminalLines, TerminalPerson, question_text
from verl_agent.system.resources import make_folder
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.types import Episode, Message, Reply, StopReason, TaskItem


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


class TerminalPlayer(TerminalPerson):
    """Person who plays one episode, alone or with the candidates of a copilot."""

    def __init__(self, console: Console, copilot: CandidatePolicy | None, lines: TerminalLines | None = None) -> None:
        super().__init__(console, lines, full=True, alone=copilot is None, copilot=copilot)

    @override
    async def ask(self, proposal: Proposal, refusal: str) -> PersonAnswer:
        """`/2` takes the second candidate."""
        if not refusal:
            for number, one in enumerate(self.candidates(proposal), start=1):
                self.announce(f"  /{number}  {one.share:4.0%}  {one.action}")
        return await super().ask(proposal, refusal)

    @override
    def read(self, proposal: Proposal, line: str) -> PersonAnswer:
        number = re.fullmatch(r"\s*/(\d{1,4})\s*", line, re.ASCII)
        if number is None or int(number[1]) < 1 or not self.candidates(proposal):
            return super().read(proposal, line)
        return PersonAnswer("edit", candidate=int(number[1]))


class Watcher(Overseer):
    """Overseer that shows every turn and lets it pass."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @override
    async def review(self, proposal: Proposal) -> Decision | None:
        text = question_text(proposal, most_lines=None)
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        return None


class NobodyElse(Policy):
    """Policy of a person who plays alone; it is never asked."""

    @override
    async def reply(self, messages: Sequence[Message]) -> Reply:
        raise AssertionError("the person has every turn.")


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
            return await _record(game, new_session, NobodyElse(), _control(game, console, None))
        new_policy = await stack.enter_async_context(start_policies(model, game.config, [game.item], game.folder))

        def sample(number: int) -> Policy:
            return new_policy(game.item, EpisodeSeed(seed, "play", game.item.env, game.item.id, step=0, sample=number))

        if game.where == "watch":
            return await _record(game, new_session, sample(0), RunControl(Watcher(console)))
        copilot = CandidatePolicy(sample, game.config.run.new_agent(), game.samples)
        return await _record(game, new_session, copilot, _control(game, console, copilot))


def _control(game: GameSetup, console: Console, copilot: CandidatePolicy | None) -> RunControl:
    """Return the overseer through which the person decides."""
    if game.where == "terminal":
        return RunControl(TerminalPlayer(console, copilot))
    return RunControl(new_seat=partial(Seat, copilot=copilot, alone=copilot is None), attended=True)


async def _record(game: GameSetup, new_session: Callable[[], Session], policy: Policy, control: RunControl) -> Episode:
    setup = EvaluationSetup(
        new_env=new_session,
        new_agent=game.config.run.new_agent,
        new_policy=lambda item, seed: policy,
        limits=EpisodeLimits(game.config.run.horizon.turns_for_evaluation(), None),
        tasks=game.split,
        model=game.model or "",
        purpose="collection",
        overseer=control,
    )
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
