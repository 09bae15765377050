"""A decision process that is small enough to enumerate, and the exact expectation of a gradient of its policy.

A state is how often the agent went left and right. A reply is `stop` (one token), or `go` and a side (two tokens); the
turn limit ends an episode that does not stop. The policy has a logit for each token in each state, so that episodes of
different lengths share parameters, and the policy controls how long an episode is.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement
from math import factorial, prod

import torch
from torch import Tensor

from verl_agent.rollout.tokens import Segment

STOP, GO, LEFT, RIGHT, SEEN = range(5)
"""Tokens: the policy writes the first four, the environment the last one."""
PROMPT = [9]
State = tuple[int, int]
"""Number of turns to the left and to the right."""


@dataclass(frozen=True)
class Play:
    """One possible episode.

    Attributes:
        states: state before each turn.
        replies: tokens of each turn's reply.
        rewards: reward of each turn.
        truncated: the turn limit ended the episode.
        last: state after the last turn.
    """

    states: tuple[State, ...]
    replies: tuple[tuple[int, ...], ...]
    rewards: tuple[float, ...]
    truncated: bool
    last: State

    @property
    def total(self) -> float:
        return sum(self.rewards)

    @cached_property
    def segment(self) -> Segment:
        """Tokens of the episode as one row."""
        ids, mask = [], []
        for reply in self.replies:
            ids += [*reply, SEEN]
            mask += [1] * len(reply) + [0]
        return Segment(PROMPT, ids[:-1], mask[:-1], None)


class Process:
    """Process with at most `turns` turns whose rewards and policy are drawn from `seed`.

    Args:
        turns: turn limit.
        seed: seed of rewards and logits.
        dense: give rewards in every turn; otherwise in the last one only.
    """

    def __init__(self, turns: int, seed: int = 0, dense: bool = True) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.turns, self._longer = turns, self
        states = [(left, right) for left in range(turns + 1) for right in range(turns + 1 - left)]
        draws = torch.rand(len(states), 3, generator=generator, dtype=torch.float64)
        self._stop_reward = {state: draws[index, 0].item() for index, state in enumerate(states)}
        self._go_reward = {
            (state, side): draws[index, side - 1].item() * dense
            for index, state in enumerate(states)
            for side in (LEFT, RIGHT)
        }
        self._column = {state: 2 * index for index, state in enumerate(states)}
        # One logit for go against stop and one for right against left, in each state.
        self.logits = torch.randn(2 * len(states), generator=generator, dtype=torch.float64, requires_grad=True)

    def with_limit(self, turns: int) -> "Process":
        """Return the process with a smaller turn limit, whose perfect critic is that of this process."""
        shorter = Process(turns)
        shorter._longer, shorter.logits, shorter._column = self, self.logits, self._column
        shorter._stop_reward, shorter._go_reward = self._stop_reward, self._go_reward
        return shorter

    def log_probs(self, play: Play, turns: int | None = None) -> Tensor:
        """Return the log-prob of each written token of the first `turns` turns, float64 `(written,)`."""
        values = []
        for state, reply in list(zip(play.states, play.replies, strict=True))[:turns]:
            column = self._column[state]
            values.append(torch.nn.functional.logsigmoid(self.logits[column] * (1 if reply[0] == GO else -1)))
            if reply[0] == GO:
                sign = 1 if reply[1] == RIGHT else -1
                values.append(torch.nn.functional.logsigmoid(self.logits[column + 1] * sign))
        return torch.stack(values)

    @cached_property
    def plays(self) -> list[Play]:
        return list(self._continue(Play((), (), (), False, (0, 0))))

    def _continue(self, play: Play) -> Iterator[Play]:
        if len(play.states) == self.turns:
            yield replace(play, truncated=True)
            return
        state, states = play.last, (*play.states, play.last)
        stopped = (*play.rewards, self._stop_reward[state])
        yield Play(states, (*play.replies, (STOP,)), stopped, False, state)
        for side in (LEFT, RIGHT):
            rewards = (*play.rewards, self._go_reward[state, side])
            last = (state[0] + (side == LEFT), state[1] + (side == RIGHT))
            yield from self._continue(Play(states, (*play.replies, (GO, side)), rewards, False, last))

    def probability(self, play: Play, turns: int | None = None) -> Tensor:
        """Return the probability of the first `turns` turns of an episode, which has a gradient."""
        return self.log_probs(play, turns).sum().exp()

    def gradient(self, value: Tensor) -> Tensor:
        """Return the gradient of a value of the policy, float64 `(parameters,)`."""
        (gradient,) = torch.autograd.grad(value, self.logits, retain_graph=True)
        return gradient

    @cached_property
    def policy_gradient(self) -> Tensor:
        """Exact gradient of the expected return."""
        return self.gradient(sum((self.probability(play) * play.total for play in self.plays), torch.tensor(0.0)))

    @cached_property
    def scores(self) -> list[Tensor]:
        """For each episode, the gradient of the log-prob of each written token, `(written, parameters)`."""
        return [torch.stack([self.gradient(value) for value in self.log_probs(play)]) for play in self.plays]

    @cached_property
    def probabilities(self) -> list[float]:
        """Probability of each episode."""
        return [self.probability(play).item() for play in self.plays]

    def value(self, state: State, turn: int) -> float:
        """Return the expected sum of rewards from a state at a turn, from 0: what a perfect critic predicts."""
        if self._longer is not self:
            return self._longer.value(state, turn)
        reached = [
            (probability, sum(play.rewards[turn:]))
            for probability, play in zip(self.probabilities, self.plays, strict=True)
            if len(play.states) > turn and play.states[turn] == state
        ]
        total = sum(probability for probability, _ in reached)
        return sum(probability * rest for probability, rest in reached) / total if reached else 0.0

    def batches(self, size: int) -> Iterator[tuple[float, Sequence[int]]]:
        """Return each batch of `size` independent episodes without regard to order: its probability, and indices."""
        for chosen in combinations_with_replacement(range(len(self.plays)), size):
            orders = factorial(size) / prod(factorial(count) for count in Counter(chosen).values())
            yield orders * prod(self.probabilities[index] for index in chosen), chosen


def direction_error(gradient: Tensor, exact: Tensor) -> float:
    """Return the sine of the angle between two gradients: 0 if one is a positive multiple of the other, at most 1."""
    along = (gradient @ exact) / (exact @ exact)
    if along <= 0:
        return 1.0
    return ((gradient - along * exact).norm() / gradient.norm()).item()
