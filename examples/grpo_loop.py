"""The whole method in one file: a tiny policy learns a game by GRPO under a growing turn limit (ScalingInter-RL).

    python examples/grpo_loop.py

It takes a minute on one core and needs neither verl nor Ray. Read it from `main` upwards, then change it: the
environment, the horizon, the advantage. The trainer behind `verl-agent train` does the same at scale. This file leaves
out what makes it a trainer: an inference engine, shards, checkpoints, retries and records.

Letters after an underscore are the dimensions of a tensor: B episodes, L tokens, V words.
"""

import asyncio
import copy
import random
from collections.abc import Sequence
from statistics import fmean, pstdev

import torch
from torch import Tensor, nn

import verl_agent as va

NUMBERS = [str(number) for number in range(1, 11)]
"""Words that the policy can say: a reply is one word, so that one turn is one trained token."""
OTHERS = ["<pad>", "<unknown>", "Higher.", "Lower.", "Right.", "range:"]
VOCABULARY = {word: index for index, word in enumerate([*OTHERS, *NUMBERS])}
FIRST = len(OTHERS)

STEPS, TASKS, GROUP, EPOCHS, CLIP = 120, 8, 16, 2, 0.2
HORIZON = va.Horizon(max_turns=[2, 3, 5], steps_per_stage=40)


class TinyPolicy(nn.Module):
    """Transformer of 70,000 parameters that reads words and says a number."""

    def __init__(self, size: int = 64, longest: int = 32) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(len(VOCABULARY), size), nn.Embedding(longest, size)
        layer = nn.TransformerEncoderLayer(size, 4, 2 * size, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(size, len(NUMBERS))

    def forward(self, tokens_BL: Tensor) -> Tensor:
        """Return the log-probs of the next number after each token, float `(B, L, V)`."""
        length = tokens_BL.shape[1]
        causal_LL = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.layers(self.word(tokens_BL) + self.place(torch.arange(length)), mask=causal_LL, is_causal=True)
        return torch.log_softmax(self.head(hidden), -1)

    @torch.no_grad()
    def reply(self, messages: Sequence[va.Message]) -> str:
        """Sample the next reply: the only method that the episode loop needs."""
        tokens, _ = tokenize(messages)
        return NUMBERS[int(torch.multinomial(self(torch.tensor([tokens]))[0, -1].exp(), 1))]


def tokenize(messages: Sequence[va.Message]) -> tuple[list[int], list[int]]:
    """Return the tokens of a conversation, and 1 for each token that the policy wrote, else 0.

    Only the last word of the environment's messages is kept: the end of the range, and the answer to a guess.
    """
    words = [message["content"].split()[-1].rstrip(".?") for message in messages]
    words = [word if word in VOCABULARY else f"{word}." for word in words]
    mask = [int(message["role"] == "assistant") for message in messages]
    return [VOCABULARY.get(word, VOCABULARY["<unknown>"]) for word in words], mask


async def play_group(task: va.TaskItem, env: va.EnvAdapter, policy: TinyPolicy, max_turns: int) -> list[va.Episode]:
    """Play one task `GROUP` times. An episode that the environment broke teaches nothing, so it is left out."""
    games = (va.play(task, env, policy=policy, agent="raw", max_turns=max_turns) for _ in range(GROUP))
    return [episode for episode in await asyncio.gather(*games) if episode.valid]


def group_advantages(episodes: Sequence[va.Episode]) -> list[float]:
    """Return the advantage of each episode of one task: (R - mean) / std (GRPO, arXiv 2402.03300, section 4.1)."""
    returns = [episode.reward for episode in episodes]
    return [(value - fmean(returns)) / (pstdev(returns) + 1e-6) for value in returns]


def as_batch(episodes: Sequence[va.Episode], advantages: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens `(B, L)`, their mask `(B, L)`, and the advantage of each token `(B, L)`."""
    rows = [tokenize(episode.messages) for episode in episodes]
    longest = max(len(tokens) for tokens, _ in rows)
    tokens_BL = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens, _ in rows])
    mask_BL = torch.tensor([mask + [0] * (longest - len(mask)) for _, mask in rows])
    return tokens_BL, mask_BL, mask_BL * torch.tensor(advantages)[:, None]


def update(policy: TinyPolicy, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor, Tensor]) -> None:
    """Take `EPOCHS` steps on the clipped objective of PPO (arXiv 1707.06347, equation 7), averaged over tokens."""
    tokens_BL, mask_BL, advantages_BL = batch
    said_BL = (tokens_BL[:, 1:] - FIRST).clamp(min=0)  # the policy says token t after it has read the tokens before t
    mask_BL, advantages_BL = mask_BL[:, 1:], advantages_BL[:, 1:]
    old_BL = None
    for _ in range(EPOCHS):
        log_probs_BL = policy(tokens_BL)[:, :-1].gather(-1, said_BL[..., None])[..., 0]
        old_BL = log_probs_BL.detach() if old_BL is None else old_BL
        ratio_BL = (log_probs_BL - old_BL).exp()
        clipped_BL = ratio_BL.clamp(1 - CLIP, 1 + CLIP)
        gains_BL = torch.minimum(ratio_BL * advantages_BL, clipped_BL * advantages_BL)
        loss = -(gains_BL * mask_BL).sum() / mask_BL.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


async def train(env: va.EnvAdapter, policy: TinyPolicy, horizon: va.Horizon, steps: int) -> None:
    """Train the policy. The turn limit is a function of the step, as in `verl-agent train`."""
    optimizer, luck, tasks = torch.optim.AdamW(policy.parameters(), lr=1e-3), random.Random(0), tasks_of(env)
    for step in range(1, steps + 1):
        max_turns = horizon.turns_at(step)
        groups = [await play_group(task, env, policy, max_turns) for task in luck.sample(tasks, TASKS)]
        episodes = [episode for group in groups for episode in group]
        advantages = [advantage for group in groups for advantage in group_advantages(group)]
        update(policy, optimizer, as_batch(episodes, advantages))
        if step % 10 == 0:
            solved, turns = (fmean(map(of, episodes)) for of in (lambda one: one.success, lambda one: len(one.turns)))
            print(f"step {step:3}  turn limit {max_turns}  success {solved:4.0%}  turns {turns:.1f}", flush=True)


async def success(env: va.EnvAdapter, policy: TinyPolicy, max_turns: int) -> float:
    """Return the success rate over all tasks, eight games each."""
    games = [va.play(task, env, policy=policy, agent="raw", max_turns=max_turns) for task in tasks_of(env) * 8]
    return fmean(episode.success for episode in await asyncio.gather(*games))


def tasks_of(env: va.EnvAdapter) -> list[va.TaskItem]:
    """Return the tasks whose numbers the policy can say."""
    return [task for task in env.tasks("small_train") if task.data["high"] <= len(NUMBERS)]


def main() -> None:
    """Compare the policy before and after training, at the turn limit of the last stage."""
    torch.manual_seed(0)
    env, policy = va.make_env("guess_number"), TinyPolicy()
    untrained, limit = copy.deepcopy(policy), HORIZON.stages[-1]
    asyncio.run(train(env, policy, HORIZON, STEPS))
    before, after = (asyncio.run(success(env, one, limit)) for one in (untrained, policy))
    print(f"success within {limit} turns: {before:.0%} before, {after:.0%} after")


if __name__ == "__main__":
    main()
