"""Self-play in Kuhn poker with a small model: `python -m tests.bench.kuhn FOLDER [SEEDS] [STEPS]`.

Three estimators play the same seeds: `rae`, `grpo` by role, and `turn_returns`, whose baseline is the mean of the
batch, and which a training run refuses for two trained seats. Matches, tokens, estimators and losses are those of the
library. NashConv is exact: OpenSpiel computes it from the model's probabilities in all 12 information states.
"""

import asyncio
import copy
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyspiel
import torch
from open_spiel.python import policy as spiel_policy
from open_spiel.python.algorithms import exploitability

from env_adapters.openspiel.adapter import OpenSpiel
from tests import ROOT
from verl_agent.agents.plain import Raw
from verl_agent.config.composing import compose_training
from verl_agent.config.reward_shaping import RewardShaping, turn_rewards
from verl_agent.envs.arena import seat_item
from verl_agent.rollout.engine_policy import EnginePolicy
from verl_agent.rollout.episode import EpisodeLimits, play
from verl_agent.rollout.matches import Match, SeatSession
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.rollout.settings import TokenBudget
from verl_agent.rollout.tokens import EpisodeTokens
from verl_agent.study.inference import over_seeds
from verl_agent.study.settings import TinySettings
from verl_agent.study.tiny.engine import LockstepEngine, new_model
from verl_agent.study.tiny.learner import Batch, Learner, minimize
from verl_agent.study.tiny.playing import InThisThread, Row
from verl_agent.study.tiny.warm_start import imitation_loss
from verl_agent.study.tiny.words import WordBuilder, Words
from verl_agent.types import Message, Reply

ARMS = ("rae", "grpo", "turn_returns")
MODEL = TinySettings(width=64, layers=2, heads=2)
DEALS, MATCHES = 6, 6
"""Deals of a step, and matches of each deal."""
SHAPING = RewardShaping(invalid_action_cost=1.0)
BUDGET, LIMITS = TokenBudget(64, 64, 3, True), EpisodeLimits(4, None)
MOVES = ("Pass", "Bet")
OVERRIDES = (
    *("actor_rollout_ref.actor.optim.lr=5e-4", f"actor_rollout_ref.rollout.n={2 * MATCHES}"),
    *(f"actor_rollout_ref.actor.ppo_mini_batch_size={DEALS}", "actor_rollout_ref.actor.use_kl_loss=true"),
)
ARENA = OpenSpiel("kuhn_poker", ["self", "self"], rules=False)


class Reader:
    """Policy of random moves that notes what it has read in each information state."""

    def __init__(self, found: dict[str, list[Message]], seed: int) -> None:
        self._found, self._luck = found, Random(seed)

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Return a random move."""
        self._found[messages[-1]["content"].partition("State: ")[2].splitlines()[0]] = list(messages)
        return Reply(self._luck.choice(MOVES))


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
    jobs = [play(seat_item(item, ARENA, at, name), one, Raw(ARENA.action_format), by, LIMITS) for at, one, by in seats]
    episodes = await asyncio.gather(*jobs)
    for seat, episode in enumerate(episodes):
        await match.settle(seat, episode)
    return list(episodes)


class Run:
    """Self-play with one estimator and one seed."""

    def __init__(self, arm: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.states, self.seed, self.luck = histories(), seed, Random(seed)
        texts = [message["content"] for messages in self.states.values() for message in messages]
        self.words = Words.of_texts([*texts, *MOVES, "is not possible.\n", "The match has ended. Your result: -1 -2"])
        self.builder, self.model = WordBuilder(self.words), new_model(self.words, MODEL)
        self.rows = [self._tokens(messages, move) for messages in self.states.values() for move in MOVES]
        self._imitate_chance()
        recipe = ROOT / "recipes/openspiel/grpo_cpu.yaml"
        config = compose_training(recipe, [*OVERRIDES, f"algorithm.adv_estimator={arm}", f"data.seed={seed}"])
        reference = copy.deepcopy(self.model)
        self.learner = Learner(config, SHAPING, self.model, None, reference, seed)

    def _tokens(self, messages: list[Message], move: str) -> Any:
        tokens = EpisodeTokens(self.builder, Words.eos_token_id)
        tokens.add_messages(messages)
        ids = [*self.words.encode(move), Words.eos_token_id]
        tokens.add_reply(move, ids, None, [0] * len(ids))
        segment = tokens.segments()[0]
        last = [0] * (len(segment.response_ids) - len(ids)) + [1] * len(ids)
        return replace(segment, response_mask=last)

    def _imitate_chance(self) -> None:
        """Imitate a strategy drawn at random, which bets with probability 1/4, 1/2 or 3/4 in each state."""
        optimizer, shown = torch.optim.AdamW(self.model.parameters(), 2e-3), []
        for state in range(len(self.states)):
            bets = self.luck.randint(1, 3)
            shown += [self.rows[2 * state]] * (4 - bets) + [self.rows[2 * state + 1]] * bets
        for _ in range(200):
            imitation_loss(self.model, shown).backward()
            minimize(self.model, optimizer, 1.0)

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

    async def _match(self, engine: Any, item: Any, deal: int, match: int, step: int) -> tuple[list[Row], float]:
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
            rows.append(Row(f"{deal:05d}.{seat}_{match}_0", segment, fields))  # verl's GRPO reads groups from keys here
        return rows, sum(episode.info_total("invalid_action") for episode in episodes)

    @torch.no_grad()
    def nash_conv(self) -> tuple[float, float]:
        """Return the exact NashConv, and the mean probability of a possible move."""
        batch = Batch([Row("", segment, {}) for segment in self.rows])
        chosen_BT, _ = batch.log_probs(self.model, range(len(self.rows)), batch.mask_BT.shape[1])
        probs_SM = (chosen_BT * batch.mask_BT).sum(1).double().exp().reshape(-1, 2).numpy()
        game = pyspiel.load_game("kuhn_poker")
        table = spiel_policy.TabularPolicy(game)
        for state, probs_M in zip(self.states, probs_SM, strict=True):
            table.action_probability_array[table.state_lookup[state]] = probs_M / probs_M.sum()
        return exploitability.nash_conv(game, table), float(probs_SM.sum(1).mean())


def main(folder: Path, seeds: int, steps: int) -> None:
    """Play all arms of each seed; what has ended is not played again."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(1, seeds + 1):
        for arm in ARMS:
            file, points, begun = folder / f"{arm}-{seed}.json", [], time.process_time()
            if file.is_file():
                continue
            run = Run(arm, seed)
            for step in range(steps + 1):
                measured = run.step(step) if step else {}
                if step % 10 == 0:
                    value, valid = run.nash_conv()
                    points.append({"step": step, "nash_conv": value, "valid": valid, **measured})
            file.write_text(json.dumps(points))
            sys.stdout.write(f"{arm} {seed}: {points[-1]} {time.process_time() - begun:.0f} s\n")
            sys.stdout.flush()
    report(folder)


def report(folder: Path) -> None:
    """Write the last, best and mean NashConv of each arm with 95 % intervals over seeds."""
    for arm in ARMS:
        runs = [[one["nash_conv"] for one in json.loads(file.read_text())] for file in sorted(folder.glob(f"{arm}-*"))]
        for name, values in (("end", [run[-1] for run in runs]), ("least", [min(run) for run in runs])):
            mean, below = over_seeds(values), sum(value < 0.3 for value in values)
            sys.stdout.write(f"{arm}, {name}: {mean}, {below} of {len(runs)} below 0.3\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *[int(one) for one in [*sys.argv[2:], "8", "300"][:2]])
