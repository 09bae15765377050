"""Self-play in Kuhn poker with a small model: `python -m tests.bench.kuhn FOLDER [SEEDS] [STEPS]`.

Three estimators play the same seeds: `rae`, `grpo` by role, and `turn_returns`, whose baseline is the mean of the
batch, and which a training run refuses for two trained seats. Matches, tokens, estimators and losses are those of the
library. The model starts at the uniform strategy, to which a KL loss ties it, so that self-play does not cycle.

NashConv is exact: OpenSpiel computes it from the model's probabilities in all 12 information states. It is given for
the average strategy of all policies of the second half, each weighted by its own reach, and for the last policy.
"""

import asyncio
import copy
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyspiel
import torch
from open_spiel.python import policy as spiel_policy
from open_spiel.python.algorithms import exploitability
from open_spiel.python.algorithms.policy_aggregator import PolicyAggregator
from typing_extensions import override

from env_adapters.openspiel.adapter import OpenSpiel
from tests import ROOT
from verl_agent.agents.plain import Raw
from verl_agent.config.composing import compose_training
from verl_agent.config.reward_shaping import RewardShaping, turn_rewards
from verl_agent.envs.arena import seat_item
from verl_agent.rollout.engine_policy import EnginePolicy
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.matches import Match, SeatSession
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.rollout.settings import TokenBudget
from verl_agent.rollout.tokens import EpisodeTokens
from verl_agent.study.inference import compare_arms, over_seeds
from verl_agent.study.settings import TinySettings
from verl_agent.study.tiny.engine import LockstepEngine
from verl_agent.study.tiny.learner import Batch, Learner, minimize
from verl_agent.study.tiny.model import new_model
from verl_agent.study.tiny.playing import InThisThread, SegmentRow
from verl_agent.study.tiny.warm_start import imitation_loss
from verl_agent.study.tiny.words import WordBuilder, Words
from verl_agent.types import Message, Reply

ARMS = ("rae", "grpo", "turn_returns")
MEASURES = ("average", "last")
MODEL = TinySettings(width=64, layers=1, heads=2)
DEALS, MATCHES = 6, 8
"""Deals of a step, and matches of each deal."""
WARM_UPDATES = 100
SHAPING = RewardShaping(invalid_action_cost=1.0)
BUDGET, LIMITS = TokenBudget(64, 64, 3, True), EpisodeLimits(4, None)
MOVES = ("Pass", "Bet")
OVERRIDES = (
    *("actor_rollout_ref.actor.optim.lr=5e-4", f"actor_rollout_ref.rollout.n={2 * MATCHES}"),
    *(f"actor_rollout_ref.actor.ppo_mini_batch_size={DEALS}", "actor_rollout_ref.actor.use_kl_loss=true"),
    *("actor_rollout_ref.actor.kl_loss_coef=0.2", "actor_rollout_ref.actor.kl_loss_type=low_var_kl+"),
)
GAME = pyspiel.load_game("kuhn_poker")
BOUND, EVERY = 0.3, 10
"""NashConv to reach, and steps between two points of a curve."""


class States(OpenSpiel):
    """Games whose players read OpenSpiel's information state alone: their card and the moves so far, such as `0pb`."""

    @override
    def observe(self, seat: int) -> str:
        return self._text(seat, informed=True)


ARENA = States("kuhn_poker", ["self", "self"], rules=False)


class Reader:
    """Policy of random moves that notes what it has read in each information state."""

    def __init__(self, found: dict[str, list[Message]], seed: int) -> None:
        self._found, self._luck = found, Random(seed)

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Return a random move."""
        self._found[messages[-1]["content"]] = list(messages)
        return Reply(self._luck.choice(MOVES))


@cache
def histories() -> dict[str, list[Message]]:
    """Return the messages that a seat has read in each information state."""
    found: dict[str, list[Message]] = {}
    for seed in range(100):
        asyncio.run(play_match(ARENA.tasks("train")[seed], "", [Reader(found, seed), Reader(found, 1000 + seed)]))
    assert len(found) == 12
    return found


async def play_match(item: Any, name: str, policies: list[Any]) -> list[Any]:
    """Play one match, and return the episodes of its seats."""
    match = Match(ARENA.new_session(), item, name, ARENA.policy_seats)
    seats = [(seat, SeatSession(match, seat), policy) for seat, policy in enumerate(policies)]
    jobs = [
        play_episode(seat_item(item, ARENA, at, name), one, Raw(ARENA.action_format), by, LIMITS)
        for at, one, by in seats
    ]
    episodes = await asyncio.gather(*jobs)
    for seat, episode in enumerate(episodes):
        await match.settle(seat, episode)
    return list(episodes)


class Start:
    """Model of a seed before self-play, which plays the uniform strategy. It is the reference of the KL loss, too."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.words = Words.of_texts([*histories(), *MOVES])
        self.builder, self.model = WordBuilder(self.words), new_model(self.words, MODEL)
        self.rows = [self._tokens(messages, move) for messages in histories().values() for move in MOVES]
        optimizer = torch.optim.AdamW(self.model.parameters(), 2e-3)
        for _ in range(WARM_UPDATES):
            imitation_loss(self.model, self.rows).backward()
            minimize(self.model, optimizer, 1.0)

    def _tokens(self, messages: list[Message], move: str) -> Any:
        tokens = EpisodeTokens(self.builder, Words.eos_token_id)
        tokens.add_messages(messages)
        ids = [*self.words.encode(move), Words.eos_token_id]
        tokens.add_reply(move, ids, None, [0] * len(ids))
        segment = tokens.segments()[0]
        last = [0] * (len(segment.response_ids) - len(ids)) + [1] * len(ids)
        return replace(segment, response_mask=last)


class Run:
    """Self-play with one estimator and one seed."""

    def __init__(self, arm: str, seed: int, start: Start) -> None:
        self.seed, self.luck, self.rows = seed, Random(seed), start.rows
        self.words, self.builder, self.model = start.words, start.builder, copy.deepcopy(start.model)
        recipe = ROOT / "recipes/openspiel/grpo_cpu.yaml"
        config = compose_training(recipe, [*OVERRIDES, f"algorithm.adv_estimator={arm}", f"data.seed={seed}"])
        self.learner = Learner(config, SHAPING, self.model, None, start.model, seed)

    def step(self, number: int) -> dict[str, float]:
        """Play and learn from the matches of one step."""
        engine, jobs = LockstepEngine(self.model), []
        for deal, item in enumerate(self.luck.sample(ARENA.tasks("train"), DEALS)):
            for match in range(MATCHES):
                jobs.append(partial(self._match, engine, item, deal, match, number))

        async def together() -> Any:
            asyncio.get_running_loop().set_default_executor(InThisThread(1))
            return await engine.run(jobs)

        played = asyncio.run(together())
        measured = self.learner.update([row for rows, _ in played for row in rows], number)
        return {**measured, "invalid": sum(bad for _, bad in played) / len(played)}

    async def _match(self, engine: Any, item: Any, deal: int, match: int, step: int) -> tuple[list[SegmentRow], float]:
        policies, ends = [], frozenset({Words.eos_token_id})
        for seat in range(2):
            seed = EpisodeSeed(self.seed, "train", "kuhn", item.id, step, 2 * match + seat, deal)
            tokens = EpisodeTokens(self.builder, Words.eos_token_id)
            policies.append(EnginePolicy(engine, self.words, tokens, BUDGET, {}, ends, seed))
        episodes, rows = await play_match(item, f"{deal}.{match}", policies), []
        for seat, (episode, policy) in enumerate(zip(episodes, policies, strict=True)):
            if not episode.valid:  # the other seat left before this one was to move
                continue
            (segment,) = policy.tokens.segments()
            fields = turn_rewards(episode, SHAPING, episode.item.category).to_fields()
            key = f"{deal:05d}.{seat}_{match}_0"  # verl's GRPO reads groups from keys here
            rows.append(SegmentRow(key, segment, fields))
        return rows, sum(episode.info_total("invalid_action") for episode in episodes)

    @torch.no_grad()
    def strategy(self) -> tuple[Any, float]:
        """Return the strategy of the model as a table, and the mean probability of a possible move."""
        batch = Batch([SegmentRow("", segment, {}) for segment in self.rows])
        chosen_BT, _ = batch.log_probs(self.model, range(len(self.rows)), batch.mask_BT.shape[1])
        probs_SM = (chosen_BT * batch.mask_BT).sum(1).double().exp().reshape(-1, 2).numpy()
        table = spiel_policy.TabularPolicy(GAME)
        for state, probs_M in zip(histories(), probs_SM, strict=True):
            table.action_probability_array[table.state_lookup[state]] = probs_M / probs_M.sum()
        return table, float(probs_SM.sum(1).mean())


def nash_conv(strategy: Any) -> float:
    """Return what both players gain in sum if each plays the best response to the strategy."""
    return float(exploitability.nash_conv(GAME, strategy))


def average(strategies: Sequence[Any]) -> Any:
    """Return the strategy that draws one of the strategies at the start of a game and plays it to the end."""
    return PolicyAggregator(GAME).aggregate([0, 1], [list(strategies)] * 2, [[1.0] * len(strategies)] * 2)


def learn(arm: str, seed: int, start: Start, steps: int) -> dict[str, Any]:
    """Play one run, and return its curve and the NashConv of its last and of its average strategy."""
    run, points, late = Run(arm, seed, start), [], []
    for step in range(steps + 1):
        measured = run.step(step) if step else {}
        strategy, valid = run.strategy()
        late += [strategy] if 2 * step > steps else []
        if step % EVERY == 0:
            points.append({"step": step, "nash_conv": nash_conv(strategy), "valid": valid, **measured})
    return {"last": points[-1]["nash_conv"], "average": nash_conv(average(late)), "points": points}


def main(folder: Path, seeds: int, steps: int) -> None:
    """Play all arms of each seed; what has ended is not played again."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(1, seeds + 1):
        files = {arm: folder / f"{arm}-{seed}.json" for arm in ARMS}
        if missing := [arm for arm, file in files.items() if not file.is_file()]:
            start = Start(seed)
        for arm in missing:
            begun = time.process_time()
            files[arm].write_text(json.dumps(learn(arm, seed, start, steps)))
            say(f"{arm} {seed}: {time.process_time() - begun:.0f} s")
    report(folder)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def report(folder: Path) -> None:
    """Print a table of the arms and write their curves to `curves.json`.

    Intervals are 95 % t intervals over seeds; differences are to the last arm, paired by seed.
    """
    files = {arm: sorted(folder.glob(f"{arm}-*.json")) for arm in ARMS}
    runs = {arm: [json.loads(file.read_text()) for file in found] for arm, found in files.items()}
    curves = {arm: [[round(one["nash_conv"], 3) for one in run["points"]] for run in runs[arm]] for arm in ARMS}
    averages = {arm: [round(run["average"], 3) for run in runs[arm]] for arm in ARMS}
    content = {"every_steps": EVERY, "nash_conv": curves, "average": averages}
    (folder / "curves.json").write_text(json.dumps(content))
    below, minus = f"below {BOUND}", f"minus `{ARMS[-1]}`"
    say(f"| | {' | '.join(f'{name} | {below} | {minus}' for name in MEASURES)} |")
    values = {name: {arm: np.array([run[name] for run in runs[arm]]) for arm in ARMS} for name in MEASURES}
    for arm in ARMS:
        cells = [cell for name in MEASURES for cell in compared(values[name][arm], values[name][ARMS[-1]])]
        say(f"| `{arm}` | {' | '.join(cells)} |")


def compared(values: Any, first: Any) -> list[str]:
    """Return the cells of one measure of an arm: its mean, seeds below the bound, and the difference to another arm."""
    difference = compare_arms(values[None], first[None], lower_is_better=True)
    others = "" if values is first else f"{difference.difference}, p {difference.p_value:.2f}"
    return [str(over_seeds(values)), f"{sum(values < BOUND)} of {len(values)}", others]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *[int(one) for one in [*sys.argv[2:], "8", "250"][:2]])
