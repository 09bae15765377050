"""Batched play of GuessNumber with one token for each action and each observation."""

import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from env_adapters.guess_number.adapter import GuessNumber
from verl_agent.types import Episode, Reply, StopReason, TaskItem, Turn

HIGHEST, LONGEST = 16, 12
"""Largest number of a range, and largest turn limit."""
PAD, BEGIN, FIRST_NUMBER = 0, 1, 2
ANSWERS = {"Higher.": 0, "Lower.": 1, "Right.": 2, "Out of range": 3, "That is no": 4}
"""Observations by their first two words; the number is the place of the token after those of the numbers."""
TOKENS = FIRST_NUMBER + HIGHEST + len(ANSWERS)
PROMPT = 2
"""Tokens of a prompt: `BEGIN` and the end of the range."""
LENGTH = PROMPT + 2 * LONGEST
Result = TypeVar("Result")
Policy = Callable[[Tensor], Tensor]
"""Function from tokens, int64 `(B, L)`, to the logits of the next token, float `(B, TOKENS)`."""


def tasks() -> list[TaskItem]:
    """Return one task for each number of each range 1 to 5, 6, ... `HIGHEST`."""
    return [
        TaskItem("guess_number", f"{high}:{target}", {"high": high, "target": target})
        for high in range(5, HIGHEST + 1)
        for target in range(1, high + 1)
    ]


def number_token(number: int) -> int:
    """Return the token of a number from 1 to `HIGHEST`."""
    return FIRST_NUMBER + number - 1


def answer_token(observation: str) -> int:
    """Return the token of an observation."""
    place = next(place for start, place in ANSWERS.items() if observation.startswith(start))
    return FIRST_NUMBER + HIGHEST + place


HIGHER, LOWER = answer_token("Higher."), answer_token("Lower.")


def action_text(token: int) -> str:
    """Return the action of a token; tokens of other kinds are no number."""
    return str(token - FIRST_NUMBER + 1) if FIRST_NUMBER <= token < FIRST_NUMBER + HIGHEST else "?"


@dataclass
class Batch:
    """Episodes of one training step, as tensors and as records. Arms may change rewards and mask.

    Attributes:
        keys: verl's key of each row, `<group>_<sample>_<segment>`; groups sort in the order of tasks.
        episodes: record of each row.
        tokens_BL: int64 `(B, PROMPT + T + 1)`, prompt, response and last observation, then `PAD`.
        mask_BT: 0/1 `(B, T)`, 1 for actions. A row without ones is not trained on.
        old_BT: float `(B, T)`, log-probs of the policy that sampled, 0 where the mask is 0.
        rewards_BT: float `(B, T)`, the return on the last action.
        seconds_B: simulated durations of the episodes.
        staleness: mean number of updates since an action was sampled.
    """

    keys: list[str]
    episodes: list[Episode]
    tokens_BL: Tensor
    mask_BT: Tensor
    old_BT: Tensor
    rewards_BT: Tensor
    seconds_B: list[float]
    staleness: float = 0.0

    @property
    def groups(self) -> list[str]:
        """Group of each row."""
        return [key.split("_")[0] for key in self.keys]

    @property
    def last_action_B(self) -> Tensor:
        """Position of each row's last action in the response, int64 `(B,)`."""
        return torch.tensor([2 * len(episode.turns) - 2 for episode in self.episodes])


@torch.no_grad()
def play(policy: Policy, items: Sequence[TaskItem], max_turns: int, seed: int) -> Batch:
    """Play one episode of each item at once. Consecutive equal items are the samples of a group.

    Args:
        policy: policy that samples with temperature 1.
        items: task of each row.
        max_turns: turn limit.
        seed: seed of sampling and of durations.
    """
    generator, luck = torch.Generator().manual_seed(seed), random.Random(seed)
    sessions = [GuessNumber() for _ in items]
    episodes = [Episode(item, max_turns, stop=StopReason.TURN_LIMIT) for item in items]
    tokens_BL = torch.full((len(items), PROMPT + 2 * max_turns), PAD)
    old_BT = torch.zeros(len(items), 2 * max_turns)
    tokens_BL[:, 0] = BEGIN
    for row, (session, item) in enumerate(zip(sessions, items, strict=True)):
        result_of(session.reset(item))
        tokens_BL[row, 1] = number_token(item.data["high"])
    running = list(range(len(items)))
    for turn in range(max_turns):
        at = PROMPT + 2 * turn
        log_probs = torch.log_softmax(policy(tokens_BL[running, :at]), -1)
        actions = torch.multinomial(log_probs.exp(), 1, generator=generator)
        tokens_BL[running, at] = actions[:, 0]
        old_BT[running, at - PROMPT] = log_probs.gather(1, actions)[:, 0]
        for row, action in zip(running, actions[:, 0].tolist(), strict=True):
            text = action_text(action)
            step = result_of(sessions[row].step(text))
            episodes[row].turns.append(Turn(Reply(text, tokens=1), text, step, 0.0, 0.0))
            tokens_BL[row, at + 1] = answer_token(step.observation)
            if step.terminated:
                episodes[row].stop = StopReason.TERMINATED
        running = [row for row in running if episodes[row].stop is not StopReason.TERMINATED]
        if not running:
            break
    return as_batch(items, episodes, tokens_BL, old_BT, luck)


def result_of(call: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine that never waits."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the coroutine waits.")


def as_batch(
    items: Sequence[TaskItem], episodes: list[Episode], tokens_BL: Tensor, old_BT: Tensor, luck: random.Random
) -> Batch:
    """Return played episodes as a batch; consecutive equal items are the samples of a group."""
    keys, group, sample = [], -1, 0
    for row, item in enumerate(items):
        group, sample = (group, sample + 1) if row and items[row - 1] is item else (group + 1, 0)
        keys.append(f"{group:04d}_{sample}_0")
    turns_B = torch.tensor([len(episode.turns) for episode in episodes])
    length = 2 * int(turns_B.max()) - 1
    position_T = torch.arange(length)
    mask_BT = ((position_T % 2 == 0) & (position_T < 2 * turns_B[:, None])).float()
    rewards_BT = torch.zeros(len(items), length)
    rewards_BT[torch.arange(len(items)), 2 * turns_B - 2] = torch.tensor([episode.reward for episode in episodes])
    seconds = [sum(luck.lognormvariate(0, 0.5) for _ in episode.turns) for episode in episodes]
    return Batch(
        keys, episodes, tokens_BL[:, : PROMPT + length + 1], mask_BT, old_BT[:, :length] * mask_BT, rewards_BT, seconds
    )
