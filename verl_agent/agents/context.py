"""Context windows: the part of a conversation that the model reads before each reply."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from verl_agent.agents.settings import ContextSettings
from verl_agent.envs.parsing import readable_parts
from verl_agent.sections import section
from verl_agent.types import DemoAction, Message

OMITTED = "(This observation is left out.)"
SUMMARIZED = 8
"""Most actions in the summary of a demonstration; the last ones."""
SUMMARY = re.compile(
    r"^\W{0,9}summary\W{0,3}:(.*?)(?=^\W{0,9}(?:thought|action|plan|reflection)\W{0,3}:|^\s*[<`]|\Z)",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Context(ABC):
    """Rule that selects the visible messages of a conversation before each reply.

    While the visible messages only grow at their end, the engine continues from its cache and the episode stays one
    training sample. Any other change begins a new sample, whose prompt holds the earlier turns. So the model is
    trained on the tokens that it sampled, after exactly the tokens that preceded them.
    """

    keep: ClassVar[str]
    edits: ClassVar[bool] = True
    """True if the visible messages may differ from the beginning of the conversation."""

    instruction: ClassVar[str] = ""
    """Text that this context adds to the prompt; "" for no text."""

    @abstractmethod
    def visible_messages(self, messages: Sequence[Message], prompt_length: int) -> list[Message]:
        """Return the messages that the model reads."""

    def demo_prefix(self, actions: Sequence[DemoAction]) -> str:
        """Return the beginning of a demonstrated reply after these actions; "" for no text."""
        return ""

    def sample_count(self, trained: Sequence[bool]) -> int:
        """Return the number of training samples of an episode, whose turns are trained on where `trained` is True."""
        return int(any(trained))


@dataclass(frozen=True)
class KeepAll(Context):
    """Shows the whole conversation."""

    keep: ClassVar[str] = "all"
    edits: ClassVar[bool] = False

    @override
    def visible_messages(self, messages: Sequence[Message], prompt_length: int) -> list[Message]:
        return list(messages)


@dataclass(frozen=True)
class Window(Context):
    """Removes old turns, `stride` at a time; in between the visible messages only grow."""

    turns: int = 4
    stride: int = 1

    def removed(self, played: int) -> int:
        """Return how many turns, counted from the first, are removed after `played` turns."""
        return max(played - self.turns, 0) // self.stride * self.stride

    @override
    def sample_count(self, trained: Sequence[bool]) -> int:
        return len({self.removed(played) for played, learned in enumerate(trained) if learned})


@dataclass(frozen=True)
class LastObservations(Window):
    """Shows all replies, and the observations of the last `turns` turns."""

    keep: ClassVar[str] = "last"

    @override
    def visible_messages(self, messages: Sequence[Message], prompt_length: int) -> list[Message]:
        removed = self.removed((len(messages) - prompt_length) // 2)
        old = range(prompt_length + 1, prompt_length + 2 * removed, 2)
        return [_omitted(message) if index in old else message for index, message in enumerate(messages)]


@dataclass(frozen=True)
class Summary(Window):
    """Shows the model's own summary in place of the removed turns, and the last `turns` turns."""

    keep: ClassVar[str] = "summary"
    instruction: ClassVar[str] = (
        "You will not see earlier turns again. Each reply has one more line, before its action, that carries on what "
        "you must remember of them:\nSummary: what you know, have done and still have to do"
    )

    @override
    def visible_messages(self, messages: Sequence[Message], prompt_length: int) -> list[Message]:
        end = prompt_length + 2 * self.removed((len(messages) - prompt_length) // 2)
        if end == prompt_length:
            return list(messages)
        removed = reversed(messages[prompt_length:end:2])
        summary = next(filter(None, (summary_in(message["content"]) for message in removed)), "(none)")
        *task, last = messages[:prompt_length]
        text = f"Your summary of the turns before: {summary}"
        return [*task, {"role": last["role"], "content": f"{last['content']}\n\n{text}"}, *messages[end:]]

    @override
    def demo_prefix(self, actions: Sequence[DemoAction]) -> str:
        return f"Summary: {'; '.join(str(demo.action) for demo in actions[-SUMMARIZED:]) or 'nothing is done yet'}\n"


def _omitted(message: Message) -> Message:
    """Return an observation without its text; each function call keeps an answer."""
    left_out = Message(role=message["role"], content=OMITTED)
    if answers := message.get("answers"):
        left_out["answers"] = [OMITTED] * len(answers)
    return left_out


def summary_in(reply: str) -> str:
    """Return the summary in a reply, or "". Text inside `<think>` is ignored."""
    texts = (text.strip("* \n") for part in readable_parts(reply) for text in SUMMARY.findall(part))
    return next(filter(None, texts), "")


CONTEXTS: Mapping[str, type[Context]] = {kind.keep: kind for kind in (KeepAll, LastObservations, Summary)}


def make_context(values: Mapping[str, Any]) -> Context:
    """Return the context for section `agent.context`.

    Raises:
        ConfigError: a key or a value is not allowed.
    """
    settings = section("agent.context", ContextSettings, values)
    kind = CONTEXTS[settings.keep]
    return kind(settings.turns, settings.stride) if issubclass(kind, Window) else kind()
