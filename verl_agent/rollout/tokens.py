"""Tokens of one episode: ids, mask and log-probs, in the order in which the engine reads and writes them.

Every id comes either from the chat template, rendered by verl's continuous-token builder, or from the engine.
No reply is decoded and encoded again. Text never becomes a control token, see `verl_agent.rollout.control_tokens`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder, MergeResult

from verl_agent.agents.base import Agent
from verl_agent.agents.functions import call_marks
from verl_agent.envs.parsing import thought_marks
from verl_agent.messages import expanded
from verl_agent.rollout.control_tokens import ContentTokenizer, Span, encode_content
from verl_agent.types import Episode, Message, Reply

FindMarks = Callable[[str], list[Span]]
"""Returns the marks of a reply, see `Agent.marks`."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Part of an episode that verl trains on as one row: the whole episode, unless the agent edits its context.

    Attributes:
        prompt_ids: tokens before the first reply of the segment.
        response_ids: replies and observations, T tokens; as played, the model wrote the last one.
        response_mask: T values, 1 where the model wrote the token.
        response_log_probs: T values, 0.0 where the mask is 0; None if the engine returned none.
        response_versions: T values, the training step of the weights that sampled the token; 0 where the mask is 0.
            None if unknown.
        routed_experts: experts of all tokens but the last, int array of shape (tokens - 1, layers, experts of a token);
            None if the engine returned none.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_log_probs: list[float] | None
    response_versions: list[int] | None = None
    routed_experts: Any = None

    def followed_by(self, ids: Sequence[int]) -> "Segment":
        """Return the segment with further tokens that the model did not write."""
        zeros = [0] * len(ids)
        log_probs = None if self.response_log_probs is None else [*self.response_log_probs, *map(float, zeros)]
        versions = None if self.response_versions is None else [*self.response_versions, *zeros]
        return Segment(self.prompt_ids, [*self.response_ids, *ids], [*self.response_mask, *zeros], log_probs, versions)


@dataclass(slots=True)
class EpisodeTokens:
    """Growing token sequence of one episode.

    The visible messages usually extend those of the turn before. If they do not, since the agent edited the context
    (see `verl_agent.agents.context`), a new segment begins: earlier messages become its prompt and are rendered anew.
    The finished segment keeps the tokens that were sampled in it.

    Attributes:
        builder: verl's renderer of messages, see `verl_agent.rollout.chat_template.choose_builder`.
        end_of_turn: id of the token that ends a reply.
        tools: functions that the chat template receives, or None.
        marks: finds the marks in replies that someone else wrote, `Agent.marks`.
        ids: all tokens of the present segment, prompt first; the engine receives them for the next reply.
    """

    builder: ContinuousTokenBuilder
    end_of_turn: int
    tools: list[dict[str, Any]] | None = None
    marks: FindMarks = call_marks
    ids: list[int] = field(default_factory=list)
    _messages: list[Message] = field(default_factory=list)
    _content: list[Message] = field(default_factory=list)
    _mask: list[int] = field(default_factory=list)
    _log_probs: list[float] = field(default_factory=list)
    _versions: list[int] = field(default_factory=list)
    _has_log_probs: bool = True
    _experts: Any = None
    _finished: list[Segment] = field(default_factory=list)

    @property
    def in_first_segment(self) -> bool:
        """True until the agent edits the context for the first time."""
        return not self._finished

    @property
    def response_length(self) -> int:
        """Number of tokens after the prompt of the present segment."""
        return len(self._mask)

    def add_messages(self, visible: Sequence[Message]) -> None:
        """Append the messages that are new since the last call, with mask 0: first the prompt, later observations.

        A reply among them that another author wrote begins a new segment, whose prompt has it.
        """
        messages = expanded(visible)
        known = len(self._messages)
        others = any(message["role"] == "assistant" for message in messages[known:])
        if self.ids and messages[:known] == self._messages and not others:
            content = [*self._content, *self._as_content(messages[known:])]
            merged = self.builder.merge_context_tokens(self._content, content, self.ids, tools=self._tools)
            self._append(merged, None)
        else:
            self._finished, self._mask, self._log_probs, self._versions = self.segments(), [], [], []
            self._experts = None
            content = self._as_content(messages)
            self.ids = self.builder.build_initial_tokens(content, tools=self._tools)
        self._messages, self._content = messages, content

    def add_reply(
        self,
        text: str,
        token_ids: Sequence[int],
        log_probs: Sequence[float] | None = None,
        versions: Sequence[int] | None = None,
        trained: bool = True,
        experts: Any = None,
    ) -> None:
        """Append a reply, with mask 1 or, if it is not trained on, 0.

        Args:
            versions: training step of the weights that sampled each id; None for 0.
            trained: False if another author than those to learn from wrote the reply.
            experts: experts of all tokens of the segment before the reply's last one, see `Segment.routed_experts`.
        """
        start = len(self._mask)
        self._has_log_probs &= log_probs is not None
        self._experts = experts
        self._append(
            self.builder.merge_assistant_tokens(self.ids, list(token_ids)),
            list(log_probs) if log_probs is not None else [0.0] * len(token_ids),
            list(versions) if versions is not None else [0] * len(token_ids),
        )
        if not trained:
            self._mask[start:] = [0] * (len(self._mask) - start)
            self._log_probs[start:] = [0.0] * (len(self._log_probs) - start)
            self._versions[start:] = [0] * (len(self._versions) - start)
        message: Message = {"role": "assistant", "content": text}
        self._messages, self._content = [*self._messages, message], [*self._content, *self._as_content([message])]

    def marks_in(self, reply: str) -> list[Span]:
        """Return the marks of a reply that someone else wrote: those of its thought and of its action."""
        return [*thought_marks(reply), *self.marks(reply)]

    def close_reply(self) -> None:
        """Append an end-of-turn token with mask 0 to a reply that lacks one."""
        if self.ids[-1] != self.end_of_turn:
            closed = [*self.ids, self.end_of_turn]
            self._append(MergeResult(token_ids=closed, appended_token_count=1, kind="context"), None)

    def segments(self) -> list[Segment]:
        """Return the segments so far, each up to the last token that the model wrote in it.

        A segment without a reply is left out.
        """
        if 1 not in self._mask:
            return list(self._finished)
        end = len(self._mask) - self._mask[::-1].index(1)
        start = len(self.ids) - len(self._mask)
        present = Segment(
            prompt_ids=self.ids[:start],
            response_ids=self.ids[start : start + end],
            response_mask=self._mask[:end],
            response_log_probs=self._log_probs[:end] if self._has_log_probs else None,
            response_versions=self._versions[:end],
            routed_experts=self._experts,
        )
        return [*self._finished, present]

    def tokens_after(self, visible: Sequence[Message] | None) -> list[int]:
        """Return the tokens after the last reply: the observation, the start of a next reply, and one token of it.

        A critic's value belongs to the token that follows a state. With one more token, verl's values of the row
        include that of the state in which the episode stopped.

        Args:
            visible: messages that the model would read next; None if the last reply itself was truncated.

        Returns:
            Token ids; an empty list if the state begins a new segment.
        """
        if visible is not None and expanded(visible) != self._messages:
            self.add_messages(visible)
        if 1 not in self._mask:
            return []
        written = len(self._mask) - self._mask[::-1].index(1)
        return [*self.ids[len(self.ids) - len(self._mask) + written :], self.end_of_turn]

    @property
    def _tokenizer(self) -> Any:
        return getattr(self.builder, "tokenizer", None)

    @property
    def _tools(self) -> list[dict[str, Any]] | None:
        """The functions, whose descriptions are text as well."""
        if self.tools is None or not isinstance(self._tokenizer, ContentTokenizer):
            return self.tools
        tools: list[dict[str, Any]] = self._tokenizer.control.hide_values(self.tools)
        return tools

    def _as_content(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages whose texts the template renders without control tokens of their own."""
        if not isinstance(self._tokenizer, ContentTokenizer):
            return list(messages)
        return self._tokenizer.hide_messages(messages, self.marks_in)

    def _append(self, merged: MergeResult, log_probs: list[float] | None, versions: list[int] | None = None) -> None:
        """Append merged tokens; only what changed is aligned, so that the work of a turn is that of its own tokens."""
        self.ids, kept = merged.token_ids, max(len(self._mask) - merged.removed_prefix_token_count, 0)
        del self._mask[kept:], self._log_probs[kept:], self._versions[kept:]
        added, align = replace(merged, removed_prefix_token_count=0), self.builder.align_response_metadata
        mask, aligned = align(added, [], [], assistant_logprobs=log_probs)
        self._mask += mask
        self._log_probs += aligned or []
        _, aligned = align(added, [], [], assistant_logprobs=versions)  # any value by token will do
        self._versions += map(int, aligned or [])


def encode_reply(tokenizer: Any, text: str, end_of_turn: int, marks: Sequence[Span] | None = None) -> list[int]:
    """Return the ids of a reply that no engine wrote, with the end-of-turn token.

    Args:
        marks: see `EpisodeTokens.marks_in`; None for those of a thought and of function calls.
    """
    marks = [*thought_marks(text), *call_marks(text)] if marks is None else marks
    return [*encode_content(tokenizer, text, marks), end_of_turn]


def render_conversation(
    builder: ContinuousTokenBuilder,
    tokenizer: Any,
    messages: Sequence[Message],
    tools: list[dict[str, Any]] | None = None,
) -> EpisodeTokens:
    """Return the tokens of a whole conversation, its assistant messages encoded as replies."""
    tokens = EpisodeTokens(builder, tokenizer.eos_token_id, tools)
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            tokens.add_messages(messages[:index])
            add_given_reply(tokens, tokenizer, Reply(message["content"]))
    if messages[-1]["role"] != "assistant":
        tokens.add_messages(messages)
    return tokens


def render_episode(
    tokens: EpisodeTokens, tokenizer: Any, agent: Agent, episode: Episode, trained: Sequence[bool] | None = None
) -> list[Segment]:
    """Return the tokens that a played episode is trained on; see `add_given_reply` for truncated replies.

    Args:
        trained: True for each turn whose reply is trained on; None for all turns.
    """
    messages, chosen = episode.messages, [True] * len(episode.turns) if trained is None else trained
    for index, turn, train in zip(range(episode.prompt_length, len(messages), 2), episode.turns, chosen, strict=True):
        tokens.add_messages(agent.visible_messages(messages[:index], episode.prompt_length))
        add_given_reply(tokens, tokenizer, replace(turn.reply, text=messages[index]["content"]), train)
    return tokens.segments()


def add_given_reply(tokens: EpisodeTokens, tokenizer: Any, reply: Reply, trained: bool = True) -> None:
    """Append a reply that is known as text, such as that of a record.

    The policy did not write the end of a truncated reply. That end is masked where the reply was played, and absent
    where the truncation ended the episode.

    Args:
        trained: see `EpisodeTokens.add_reply`.
    """
    ids = encode_reply(tokenizer, reply.text, tokens.end_of_turn, tokens.marks_in(reply.text))
    complete = reply.truncated_by is None and not reply.force_closed
    tokens.add_reply(reply.text, ids if complete or len(ids) == 1 else ids[:-1], trained=trained)
    if reply.force_closed:
        tokens.close_reply()


def expand(runs: Iterable[Sequence[int]]) -> list[int]:
    """Return the version of each token; it is the training step after which the engine received the weights, from 0."""
    return [version for version, tokens in runs for _ in range(tokens)]


def contract(versions: Iterable[int]) -> list[list[int]]:
    """Return pairs of a version and a number of consecutive tokens that have it."""
    return [[version, len(list(tokens))] for version, tokens in groupby(versions)]
