"""Judge of episodes: asks a model for a verdict on each, and gives the reward that follows from it."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from verl_agent.envs.judge.asking import JudgeLimits, JudgeModel
from verl_agent.envs.judge.episode_text import data_block
from verl_agent.envs.judge.reading import AGAIN, grading_prompt, read_grades
from verl_agent.envs.judge.settings import JudgeSettings
from verl_agent.errors import EnvError
from verl_agent.returns import sum_rewards
from verl_agent.types import Episode, Judgement, StopReason

FOLDER = "judge"
"""Folder of a judge's replies in that of a run or an evaluation."""
SCORE, COST = "judge_score", "judge_usd"
"""Measurements of a judged turn."""


@asynccontextmanager
async def judging(judge: "Judge | None") -> AsyncIterator["Judge | None"]:
    """Yield a judge, and close it with the block."""
    try:
        yield judge
    finally:
        if judge is not None:
            await judge.close()


class Judge:
    """Judge of the episodes of one environment, from many episodes at once.

    Args:
        run: folder of the run or the evaluation.
        label: label of the environment in the run.
        judges: number of judges that share the limits of a run, one for each environment of each process.
    """

    def __init__(
        self, settings: JudgeSettings, run: Path, label: str = "", judges: int = 1, first_wait_s: float = 1.0
    ) -> None:
        self._settings, self._criteria = settings, settings.criteria()
        cache = Path(settings.cache).resolve() if settings.cache else run / FOLDER
        own = cache / f"{label or 'env'}-{socket.gethostname()}-{os.getpid()}"
        limits = JudgeLimits(settings.concurrency, settings.max_requests, settings.max_usd, judges)
        self._model = JudgeModel(settings.api, own, cache, limits, first_wait_s)

    async def close(self) -> None:
        """Close the connections and the file."""
        await self._model.close()

    async def judge(self, episode: Episode) -> None:
        """Add the judgements to a finished episode, and its reward with `mode: replace`.

        Nothing is asked about an episode that is not valid, or in which no action reached the environment. The latter
        has the reward 0 with `mode: replace`. Without a verdict the episode ends with an environment error.

        Raises:
            ConfigError: every other request would fail, too, or a limit is reached.
        """
        if not episode.valid:
            return
        stepped = [number for number, turn in enumerate(episode.turns) if turn.step is not None]
        wanted = stepped if self._settings.when == "turn" else stepped[-1:]
        try:
            made = await asyncio.gather(*(self._verdict(episode, turn, len(wanted)) for turn in wanted))
        except EnvError as error:
            episode.stop, episode.error = StopReason.ENV_ERROR, str(error)
            return
        self._place(episode, made)

    async def _verdict(self, episode: Episode, turn: int, parts: int) -> Judgement:
        """Return the judgement whose reward turn `turn` gets, one of `parts` of the episode."""
        settings, by_turn = self._settings, self._settings.when == "turn"
        block = data_block(episode, turn + 1 if by_turn else len(episode.turns), settings.max_chars)
        grades, reply = await self._model.ask(
            grading_prompt(self._criteria, block, turn + 1 if by_turn else None),
            lambda text: read_grades(text, self._criteria),
            AGAIN,
            settings.api.max_output_tokens,
        )
        score = sum_rewards(one.weight * one.score for one in grades)
        model, usd = reply.usage.model or settings.api.name or "", reply.usage.cost_usd
        return Judgement(turn, score, settings.weight * score / parts, grades, None, model, usd)

    def _place(self, episode: Episode, made: Sequence[Judgement]) -> None:
        by_turn = {one.turn: one for one in made}
        replaces = self._settings.mode == "replace"
        for number, turn in enumerate(episode.turns):
            if turn.step is None:
                continue
            step, one = turn.step, by_turn.get(number)
            if one is not None:
                measured = {SCORE: one.score / len(made), **({} if one.cost_usd is None else {COST: one.cost_usd})}
                episode.judgements.append(replace(one, replaced=step.reward if replaces else None))
                step = replace(step, info={**step.info, **measured})
            if replaces:
                step = replace(step, reward=one.reward if one else 0.0)
            episode.turns[number] = replace(turn, step=step)
        if replaces:
            episode.success_reward = self._settings.weight * self._settings.success_score
