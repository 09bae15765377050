"""The tokens of one episode: ids, mask and log-probs, in the order in which the engine saw them.

Every id comes either from the chat template, rendered by verl's continuous-token builder, or from the
engine; nothing is decoded and encoded again.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError
from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder, MergeResult, QwenContinuousTokenBuilder
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from verl_agent.agents.base import Agent
from verl_agent.errors import ConfigError
from verl_agent.types import Episode, Message

EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
"""What templates of thinking models add to a generation prompt, and drop from earlier turns."""

ANOTHER_AGENT = "Choose another agent.name, such as react, or a model whose template has tools, such as Qwen3."

PROBE: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "Action: one"},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "Action: two"},
    {"role": "user", "content": "Three?"},
]


@dataclass(frozen=True, slots=True)
class Sample:
    """One stretch of an episode as verl trains on it; the whole episode, unless the context was edited.

    Attributes:
        prompt_ids: tokens before the stretch's first reply.
        response_ids: replies and observations, T tokens, the last one written by the model.
        response_mask: T values, 1 where the model wrote the token.
        response_log_probs: T values, 0.0 where the mask is 0; None if the engine gave none.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_log_probs: list[float] | None


@dataclass(slots=True)
class EpisodeTokens:
    """Grows one episode's tokens, message by message.

    A view of the conversation that does not go on from the last one (see `verl_agent.agents.context`) begins a
    new stretch: what was said before is then prompt, rendered anew, and trained on as it was sampled before.

    Attributes:
        builder: renders messages; see `choose_builder`.
        end_of_turn: id that closes a reply.
        tools: functions that the chat template is given, or None.
        ids: all tokens of this stretch so far, prompt first: what the engine is given for the next reply.
    """

    builder: ContinuousTokenBuilder
    end_of_turn: int
    tools: list[dict[str, Any]] | None = None
    ids: list[int] = field(default_factory=list)
    _messages: list[Message] = field(default_factory=list)
    _mask: list[int] = field(default_factory=list)
    _log_probs: list[float] = field(default_factory=list)
    _has_log_probs: bool = True
    _ended: list[Sample] = field(default_factory=list)

    @property
    def first(self) -> bool:
        """Whether no stretch has ended yet."""
        return not self._ended

    @property
    def response_length(self) -> int:
        """Tokens after the prompt of this stretch."""
        return len(self._mask)

    def read(self, messages: Sequence[Message]) -> None:
        """Append what was said since the last call: the prompt first, later one observation at a time.

        Args:
            messages: what the model is shown now, all of it.
        """
        said = list(messages)
        if self.ids and said[: len(self._messages)] == self._messages:
            self._append(self.builder.merge_context_tokens(self._messages, said, self.ids, tools=self.tools), None)
        else:
            self._ended, self._mask, self._log_probs = self.samples(), [], []
            self.ids = self.builder.build_initial_tokens(said, tools=self.tools)
        self._messages = said

    def write(self, text: str, token_ids: Sequence[int], log_probs: Sequence[float] | None = None) -> None:
        """Append a reply.

        Args:
            text: the reply as it stands in the conversation.
            token_ids: the very ids that the engine returned, at least one.
            log_probs: one for each of them.
        """
        self._has_log_probs &= log_probs is not None
        self._append(
            self.builder.merge_assistant_tokens(self.ids, list(token_ids)),
            list(log_probs) if log_probs is not None else [0.0] * len(token_ids),
        )
        self._messages = [*self._messages, {"role": "assistant", "content": text}]

    def close_reply(self) -> None:
        """End a reply that was cut with an end-of-turn token which the model did not write."""
        if self.ids[-1] != self.end_of_turn:
            closed = [*self.ids, self.end_of_turn]
            self._append(MergeResult(token_ids=closed, appended_token_count=1, kind="context"), None)

    def samples(self) -> list[Sample]:
        """The stretches so far, each up to the last token that the model wrote; none if it wrote nothing."""
        if 1 not in self._mask:
            return list(self._ended)
        end = len(self._mask) - self._mask[::-1].index(1)
        start = len(self.ids) - len(self._mask)
        last = Sample(
            prompt_ids=self.ids[:start],
            response_ids=self.ids[start : start + end],
            response_mask=self._mask[:end],
            response_log_probs=self._log_probs[:end] if self._has_log_probs else None,
        )
        return [*self._ended, last]

    def _append(self, merged: MergeResult, log_probs: list[float] | None) -> None:
        self.ids = merged.token_ids
        self._mask, self._log_probs = self.builder.align_response_metadata(
            merged, self._mask, self._log_probs, assistant_logprobs=log_probs
        )


def encode_reply(tokenizer: Any, text: str, end_of_turn: int) -> list[int]:
    """Ids of a reply that a person or an oracle wrote, closed as a model would close it."""
    return [*tokenizer.encode(text, add_special_tokens=False), end_of_turn]


def choose_builder(
    tokenizer: Any, model_type: str | None, template_options: Mapping[str, Any]
) -> ContinuousTokenBuilder:
    """The continuous-token builder that agrees with the model's chat template.

    verl picks one by the config's `model_type`, and a default one for types that it does not list; for
    ChatML templates of unlisted types (SmolLM2 is a `llama`) that default drops the newline after
    the end-of-turn token. So a short conversation is built and compared with the template's rendering.

    Raises:
        ConfigError: no builder agrees, or the template refuses a plain conversation.
    """
    options = dict(template_options)
    candidates = [create_continuous_token_builder(tokenizer, hf_model_type=model_type, chat_template_kwargs=options)]
    if "<|im_end|>" in tokenizer.get_vocab():
        candidates.append(QwenContinuousTokenBuilder(tokenizer, chat_template_kwargs=options))
    found = []
    try:
        expected = without_empty_thoughts(
            tokenizer.apply_chat_template(PROBE, tokenize=False, add_generation_prompt=True, **options)
        )
    except TemplateError as error:  # such as `System role not supported`
        raise ConfigError(
            f"the chat template of this model (model_type={model_type!r}) does not render a system message and turns "
            f"of user and assistant: {error}. Use a model with a ChatML template."
        ) from error
    for builder in candidates:
        try:
            built = without_empty_thoughts(tokenizer.decode(render(builder, tokenizer, PROBE).ids))
        except ValueError as error:  # a template that renders earlier messages anew after a later one
            built = str(error)
        if built == expected:
            return builder
        found.append(f"{type(builder).__name__}: {built!r}")
    raise ConfigError(
        f"no token builder of verl agrees with the chat template of this model (model_type={model_type!r}). "
        f"The template renders {expected!r}; {'; '.join(found)}. Use a model with a ChatML template, or register a "
        "builder for it."
    )


def without_empty_thoughts(text: str) -> str:
    """The text without empty thinking blocks."""
    return text.replace(EMPTY_THOUGHT, "")


def render(
    builder: ContinuousTokenBuilder,
    tokenizer: Any,
    messages: Sequence[Message],
    tools: list[dict[str, Any]] | None = None,
) -> EpisodeTokens:
    """A whole conversation as tokens, its assistant messages encoded as replies."""
    tokens = EpisodeTokens(builder, tokenizer.eos_token_id, tools)
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            tokens.read(messages[:index])
            tokens.write(message["content"], encode_reply(tokenizer, message["content"], tokens.end_of_turn))
    if messages[-1]["role"] != "assistant":
        tokens.read(messages)
    return tokens


def render_episode(tokens: EpisodeTokens, tokenizer: Any, agent: Agent, episode: Episode) -> list[Sample]:
    """A played episode as the tokens that its agent showed and its policy wrote.

    The end of a reply that a token budget cut is no token of the policy: it is masked where the reply was played, and
    missing where the episode ended with it.

    Args:
        tokens: empty, with the agent's tools.
        tokenizer: encodes the replies.
        agent: one of the kind that played the episode.
        episode: what was played.
    """
    said = episode.messages
    for place, turn in zip(range(episode.prompt_length, len(said), 2), episode.turns, strict=True):
        text = said[place]["content"]
        ids = encode_reply(tokenizer, text, tokens.end_of_turn)
        tokens.read(agent.visible_messages(said[:place], episode.prompt_length))
        tokens.write(text, ids if turn.reply.complete or len(ids) == 1 else ids[:-1])
        if turn.reply.force_closed:
            tokens.close_reply()
    return tokens.samples()


def check_tools(
    tokenizer: Any,
    builder: ContinuousTokenBuilder,
    tools: list[dict[str, Any]],
    template_options: Mapping[str, Any],
) -> None:
    """Raise unless the chat template tells the model of the functions that an agent offers, in its format.

    Raises:
        ConfigError: it leaves them out, wants calls in another format, or renders answers unlike the token builder.
    """
    call = json.dumps({"name": tools[0]["function"]["name"], "arguments": {}})
    said: list[Message] = [
        *PROBE[:2],
        {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"},
        {"role": "tool", "content": "Done."},
    ]
    try:
        asked = tokenizer.apply_chat_template(PROBE[:2], tools=tools, tokenize=False, **template_options)
        expected = tokenizer.apply_chat_template(
            said, tools=tools, tokenize=False, add_generation_prompt=True, **template_options
        )
        tokens = render(builder, tokenizer, said, tools)
    except (TemplateError, ValueError) as error:
        raise ConfigError(f"the chat template of this model refuses functions: {error}. {ANOTHER_AGENT}") from error
    named = all(f'"name": "{tool["function"]["name"]}"' in asked for tool in tools)
    if not named or not re.search(r'<tool_call>\s*\{"name"', asked):
        raise ConfigError(f"the chat template of this model has no functions in the format of Hermes. {ANOTHER_AGENT}")
    built = tokenizer.decode(tokens.ids)
    if without_empty_thoughts(built) != without_empty_thoughts(expected):
        raise ConfigError(
            f"verl's token builder renders a function's answer unlike the chat template of this model: {built!r}, not "
            f"{expected!r}. {ANOTHER_AGENT}"
        )
