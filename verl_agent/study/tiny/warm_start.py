"""Warm start of the small model: imitation of oracle episodes, once for each seed, for all arms."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from verl_agent.config.settings import RunEnv, read_run_env
from verl_agent.envs.machine.locks import locked
from verl_agent.rollout.oracle import play_oracle
from verl_agent.rollout.tokens import EpisodeTokens, Segment, render_episode
from verl_agent.study.settings import TinySettings
from verl_agent.study.tiny.learner import Batch, minimize
from verl_agent.study.tiny.model import new_model
from verl_agent.study.tiny.playing import SegmentRow
from verl_agent.study.tiny.words import WordBuilder, Words
from verl_agent.types import Episode, TaskItem

MOST_TURNS = 200
"""Turn limit of a demonstration."""
READ_TASKS = 128
"""Further tasks of each split whose oracle episodes give words to the vocabulary, about."""


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Tokenizer and weights of the policy."""

    words: Words
    weights: dict[str, Tensor]

    def new_policy(self, settings: TinySettings) -> PreTrainedModel:
        """Return a policy with the weights."""
        policy = new_model(self.words, settings)
        policy.load_state_dict(self.weights)
        return policy

    def write(self, file: Path) -> None:
        """Write the warm start at once."""
        file.parent.mkdir(parents=True, exist_ok=True)
        save_at_once([self.words.pieces, self.weights], file)

    @classmethod
    def read(cls, file: Path) -> "WarmStart":
        """Read what `write` wrote."""
        saved: list[Any] = torch.load(file)
        return cls(Words(saved[0]), saved[1])


def save_at_once(values: list[Any], file: Path) -> None:
    """Save values with tensors; a kill leaves the whole old file or the whole new one.

    Raises:
        OSError: the file cannot be written; `torch.save` to a path raises RuntimeError if the disk is full.
    """
    content, part = BytesIO(), file.with_name(f"{file.name}.part")
    torch.save(values, content)
    part.write_bytes(content.getbuffer())
    part.replace(file)


def warm_start_once(file: Path, config: Callable[[], Mapping[str, Any]], settings: TinySettings, seed: int) -> None:
    """Write a warm start if the file is missing; a second process waits for the first one.

    Args:
        file: file of the warm start.
        config: returns the composed recipe, without any arm, so that the warm start is the same for all arms.
        settings: see `warm_start`.
        seed: see `warm_start`.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with locked(file.with_suffix(".lock")):
        if not file.is_file():
            torch.set_num_threads(1)
            warm_start(read_run_env(config()), settings, seed).write(file)


def warm_start(env: RunEnv, settings: TinySettings, seed: int) -> WarmStart:
    """Train a random model on oracle episodes of training tasks; the learning rate falls to a tenth.

    Raises:
        ConfigError: the environment has no oracle.
    """
    torch.manual_seed(seed)
    luck, train = Random(seed), env.tasks(env.env.train_tasks)
    shown = [demonstrated(item, env) for item in luck.sample(train, min(settings.warm_tasks, len(train)))]
    words = Words.of_texts(message["content"] for episode in [*shown, *others(env)] for message in episode.messages)
    policy = new_model(words, settings)
    optimizer = torch.optim.AdamW(policy.parameters(), settings.warm_rate, weight_decay=0.01)
    segments = list[Segment]()
    for one in shown:
        tokens = EpisodeTokens(WordBuilder(words), Words.eos_token_id)
        segments += render_episode(tokens, words, env.new_agent(), one)
    for step in range(settings.warm_updates):
        optimizer.param_groups[0]["lr"] = settings.warm_rate * (1 - 0.9 * step / settings.warm_updates)
        loss = imitation_loss(policy, luck.choices(segments, k=settings.warm_batch))
        loss.backward()
        minimize(policy, optimizer, 1.0)
    return WarmStart(words, policy.state_dict())


def demonstrated(item: TaskItem, env: RunEnv) -> Episode:
    """Play a task with the oracle."""
    return asyncio.run(play_oracle(item, env.live, env.live.new_session(), env.new_agent(), MOST_TURNS))


def others(env: RunEnv) -> list[Episode]:
    """Return oracle episodes of other tasks. Those of held-out tasks give words alone, so that all can be read."""
    splits = [env.tasks(env.env.train_tasks), env.tasks(env.env.eval_tasks)]
    return [demonstrated(item, env) for items in splits for item in items[:: max(1, len(items) // READ_TASKS)]]


def imitation_loss(policy: PreTrainedModel, segments: list[Segment]) -> Tensor:
    """Return the mean cross-entropy of the replies' tokens."""
    batch = Batch([SegmentRow("", segment, {}) for segment in segments])
    logits_BTV = batch.before_tokens(policy, range(len(segments)), batch.mask_BT.shape[1])
    mask_BT = batch.mask_BT.bool()
    return functional.cross_entropy(logits_BTV[mask_BT], batch.ids_BL[:, 1:][mask_BT])
