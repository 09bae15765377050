"""Asynchronous rollout in simulated time: episodes in flight, of which some continue after an update of the weights."""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from env_adapters.guess_number.adapter import GuessNumber
from tests.bench.learning.direct.game import (
    BEGIN,
    LONGEST,
    PAD,
    PROMPT,
    Batch,
    action_text,
    answer_token,
    as_batch,
    number_token,
    result_of,
)
from tests.support.partial import sampler
from verl_agent.types import Episode, Reply, StopReason, TaskItem, Turn

SIGMA, TASK_SIGMA = 1.0, 0.6
"""Deviations of the logarithms of a turn's latency, whose median is 1 s, and of a task's speed, as of web sites."""
UPDATE_S = 20.0
"""Duration of an update, in which nothing is sampled: about 30 % of a synchronous step."""
TICK_S = 0.5
"""Answers of environments that arrive within this time are served together."""
PARTITION = "train"


@dataclass(frozen=True)
class Asynchrony:
    """Settings of the rollout.

    Attributes:
        threshold: `trainer.v1.sampler.max_off_policy_threshold`; 1 for synchronous rollout.
        warmup: `num_warmup_batches`.
        corrected: weight the loss of a token by its probability in the trainer over that when it was sampled.
    """

    threshold: int = 3
    warmup: float = 0.5
    corrected: bool = True


@dataclass
class Row:
    """One episode in flight.

    Attributes:
        tokens: ids of prompt, actions and observations.
        log_probs: log-prob of each action in the policy that sampled it.
        versions: number of updates before each action was sampled.
        slowness: factor of the task's latencies.
        due_s: simulated time at which the environment answers.
    """

    episode: Episode
    session: GuessNumber
    tokens: list[int]
    slowness: float
    due_s: float
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """True if the episode is over."""
        return self.episode.stop is StopReason.TERMINATED or len(self.episode.turns) == self.episode.max_turns


class Flight:
    """Episodes in flight, whose groups the product's sampler selects.

    Args:
        policy: function from tokens, int64 `(B, L)`, to logits of each position, float `(B, L, V)`.
        settings: settings of the rollout.
        batch: groups of a step.
        samples: episodes of a group.
        seed: seed of sampling and latencies.
    """

    def __init__(
        self, policy: Callable[[Tensor], Tensor], settings: Asynchrony, batch: int, samples: int, seed: int
    ) -> None:
        self._policy, self._batch, self._samples = policy, batch, samples
        self._generator, self._luck = torch.Generator().manual_seed(seed), random.Random(seed)
        self._numbers, self._sampler = itertools.count(), sampler(settings.threshold)
        self._groups: dict[str, list[Row]] = {}
        self._updates = 0
        self.now_s = 0.0

    def dispatch(self, step: int, items: Sequence[TaskItem], max_turns: int) -> None:
        """Begin the episodes of a group for each item."""
        for item in items:
            own = replace(item)  # two groups of the same task stay apart
            slowness = math.exp(random.Random(item.id).gauss(0, TASK_SIGMA))
            rows = [self._begin(own, max_turns, slowness) for _ in range(self._samples)]
            self._groups[f"{step:07d}-{next(self._numbers):09d}"] = rows

    def take(self, step: int) -> Batch:
        """Play until the groups of a step are ready and return their episodes."""
        while True:
            self._sampler.prompt_global_steps[PARTITION] = {group: int(group[:7]) for group in self._groups}
            finished = {group for group, rows in self._groups.items() if all(row.ended for row in rows)}
            self._sampler.running_keys[PARTITION] = self._groups.keys() - finished
            if self._sampler._has_enough_samples(step, PARTITION, self._batch, finished):
                break
            self._play_due()
        chosen, _, _ = self._sampler._select_prompt_uids(PARTITION, finished, self._batch)
        return self._collected([row for group in chosen for row in self._groups.pop(group)])

    def end_update(self) -> None:
        """Pass the time of an update; later tokens are of the next version."""
        self.now_s += UPDATE_S
        self._updates += 1

    def _begin(self, item: TaskItem, max_turns: int, slowness: float) -> Row:
        session = GuessNumber()
        result_of(session.reset(item))
        episode = Episode(item, max_turns, stop=StopReason.TURN_LIMIT)
        return Row(episode, session, [BEGIN, number_token(item.data["high"])], slowness, self._answer_s(slowness))

    def _answer_s(self, slowness: float) -> float:
        return self.now_s + slowness * self._luck.lognormvariate(0, SIGMA)

    @torch.no_grad()
    def _play_due(self) -> None:
        """Play one turn of the episodes whose environment answers next."""
        running = [row for rows in self._groups.values() for row in rows if not row.ended]
        self.now_s = max(self.now_s, math.ceil(min(row.due_s for row in running) / TICK_S) * TICK_S)
        due = [row for row in running if row.due_s <= self.now_s]
        last_B = torch.tensor([len(row.tokens) - 1 for row in due])
        tokens_BL = _padded([row.tokens for row in due], int(last_B.max()) + 1)
        log_probs = torch.log_softmax(self._policy(tokens_BL)[torch.arange(len(due)), last_B], -1)
        actions = torch.multinomial(log_probs.exp(), 1, generator=self._generator)
        chosen = zip(due, actions[:, 0].tolist(), log_probs.gather(1, actions)[:, 0].tolist(), strict=True)
        for row, action, log_prob in chosen:
            text = action_text(action)
            step = result_of(row.session.step(text))
            row.episode.turns.append(Turn(Reply(text, tokens=1), text, step, 0.0, 0.0))
            row.tokens += [action, answer_token(step.observation)]
            row.log_probs.append(log_prob)
            row.versions.append(self._updates)
            row.due_s = self._answer_s(row.slowness)
            if step.terminated:
                row.episode.stop = StopReason.TERMINATED

    def _collected(self, rows: Sequence[Row]) -> Batch:
        old_BT = torch.zeros(len(rows), 2 * LONGEST)
        staleness = [self._updates - version for row in rows for version in row.versions]
        for number, row in enumerate(rows):
            old_BT[number, : 2 * len(row.log_probs) : 2] = torch.tensor(row.log_probs)
        tokens_BL = _padded([row.tokens for row in rows], PROMPT + 2 * LONGEST)
        episodes = [row.episode for row in rows]
        batch = as_batch([episode.item for episode in episodes], episodes, tokens_BL, old_BT, self._luck)
        return replace(batch, staleness=sum(staleness) / len(staleness))


def _padded(rows: Sequence[Sequence[int]], length: int) -> Tensor:
    """Return int64 `(B, length)`."""
    return torch.tensor([[*row, *[PAD] * (length - len(row))] for row in rows])
