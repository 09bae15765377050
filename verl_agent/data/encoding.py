"""A recorded conversation as one row of tokens, with a mask of what the model wrote."""

from typing import Any

import torch
from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder

from verl_agent.data.selection import conversation, ended_by_model
from verl_agent.errors import ConfigError
from verl_agent.rollout.tokens import render
from verl_agent.trace.record import EpisodeRecord

Row = dict[str, torch.Tensor]
"""`input_ids`, `position_ids` (int64) and `loss_mask`, each `(T,)`, unpadded; the names are those of verl."""


def encode_episode(record: EpisodeRecord, builder: ContinuousTokenBuilder, tokenizer: Any, max_length: int) -> Row:
    """Tokens of an episode as RL renders them, from its first prompt to its last reply.

    The record holds text, so replies are encoded anew: the ids may differ from those that were sampled where a model
    wrote a word in unusual pieces.

    Returns:
        A row whose `loss_mask` is 1 on every token of a reply and on the token that ends it; 0 on prompt and
        observations, and on the end of a last reply that a token budget cut, which the model did not write.

    Raises:
        ConfigError: it is longer than `max_length`.
    """
    sample = render(builder, tokenizer, conversation(record)).sample()
    assert sample is not None  # a conversation ends with a reply
    ids = sample.prompt_ids + sample.response_ids
    mask = [0] * len(sample.prompt_ids) + sample.response_mask
    if not ended_by_model(record):
        ids, mask = ids[:-1], mask[:-1]
    if len(ids) > max_length:
        raise ConfigError(
            f"a recorded episode of {record['task']!r} has {len(ids)} tokens, data.max_length allows {max_length}. "
            "Raise it, or record episodes with a smaller data.max_response_length."
        )
    return {
        "input_ids": torch.tensor(ids),
        "position_ids": torch.arange(len(ids)),
        "loss_mask": torch.tensor(mask),
    }
