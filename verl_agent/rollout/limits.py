"""Limits of turns and of tokens that contradict each other: refused, or told before an episode is played."""

from collections.abc import Mapping
from typing import Any

from verl_agent.errors import ConfigError
from verl_agent.models.hf import missing_template


def template_tokens(tokenizer: Any) -> int:
    """Return the tokens that the chat template puts around a reply and an answer.

    Raises:
        ConfigError: there is no template, or it does not render turns of user and assistant.
    """
    from jinja2 import TemplateError

    turn = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}]
    try:
        texts = [tokenizer.apply_chat_template(turn * count + turn[:1], tokenize=False) for count in (1, 2)]
    except TemplateError as error:
        raise ConfigError(
            f"the chat template of this model does not render turns: {error}. Use another model."
        ) from error
    except ValueError as error:
        raise missing_template(error) from error
    lengths = [len(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    return lengths[1] - lengths[0] - 2


def check_turns(turns: Mapping[str, int], reply: tuple[str, int], response: tuple[str, int], around: int) -> str:
    """Check that an episode can reach its turn limits within its tokens.

    The context of the agent must keep all turns: otherwise an episode has more tokens than a response.

    Args:
        turns: turn limits, by setting.
        reply: setting of the longest reply, and its tokens.
        response: setting of the longest response, replies and observations together, and its tokens.
        around: tokens of the chat template around a reply and the observation after it; 1 if they are not known.

    Returns:
        A sentence for the start if full replies end an episode before its turn limit; empty if they do not.

    Raises:
        ConfigError: even replies of one token and empty observations end an episode before its turn limit.
    """
    (reply_key, longest), (response_key, budget) = reply, response
    for key, limit in turns.items():
        if (least := limit + (limit - 1) * around) > budget:
            reached = (budget + around) // (1 + around)
            raise ConfigError(
                f"{key} allows {limit} turns, and {response_key}={budget} at most {reached}: a turn takes at least "
                f"{1 + around} tokens, with a reply of one token and an empty observation. Raise {response_key} above "
                f"{least}, or lower {key} to at most {reached}."
            )
    key, limit = max(turns.items(), key=lambda entry: entry[1])
    if limit * longest + (limit - 1) * around <= budget:
        return ""
    reached = (budget + around) // (longest + around)
    return (
        f"limits: {key} allows {limit} turns; replies of {reply_key}={longest} tokens end an episode in turn "
        f"{reached + 1} at the latest, since {response_key}={budget} counts replies and observations"
    )
