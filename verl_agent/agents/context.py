"""What of an episode the model is shown: all of it, its last observations, or a summary and its last turns."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from verl_agent.envs.parsing import readable
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.types import DemoAction, Message

LEFT_OUT = "(This observation is left out.)"
RECALLED = 8
"""Last actions that the summary of an oracle names."""
SUMMARY = re.compile(
    r"^\W{0,9}summary\W{0,3}:(.*?)(?=^\W{0,9}(?:thought|action|plan|reflection)\W{0,3}:|^\s*[<`]|\Z)",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Context(ABC):
    """What the model is shown of a conversation. It is asked for anew before each reply, and never sees the future.

    A view that begins with the one before it lets the engine go on where it was; any other one starts a new sample
    of the episode, in which what was said before is prompt: whatever is trained on is what was sampled, after the
    very tokens that it was sampled after.
    """

    keep: ClassVar[str]
    edits: ClassVar[bool] = True
    """Whether a view may differ from the beginning of the conversation."""

    instruction: ClassVar[str] = ""
    """What the model must be told to do for it; "" for nothing."""

    @abstractmethod
    def visible_messages(self, messages: Sequence[Message], prompt: int) -> list[Message]:
        """What the model reads.

        Args:
            messages: the conversation so far; the last one is not the model's.
            prompt: number of messages before the first reply.
        """

    def demo_prefix(self, moves: Sequence[DemoAction]) -> str:
        """What an oracle's reply begins with after these moves; "" for nothing."""
        return ""

    def segments(self, turns: int) -> int:
        """Samples that an episode of so many turns makes."""
        return 1


@dataclass(frozen=True)
class KeepAll(Context):
    """Everything."""

    keep: ClassVar[str] = "all"
    edits: ClassVar[bool] = False

    def visible_messages(self, messages: Sequence[Message], prompt: int) -> list[Message]:
        """See `Context`."""
        return list(messages)


@dataclass(frozen=True)
class Window(Context):
    """Older turns are given up, `stride` at a time: the view stays what it was in between.

    Attributes:
        turns: last turns that are always whole, >= 1.
        stride: turns that are given up at once, >= 1: one costs a sample for each turn of an episode, more make
            fewer samples and let the engine reuse what it has read.
    """

    turns: int = 4
    stride: int = 1

    def __post_init__(self) -> None:
        for name in ("turns", "stride"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"agent.context.{name} must be a whole number >= 1, got {value!r}.")

    def given_up(self, played: int) -> int:
        """How many turns, from the first one on, are given up when so many are played."""
        return max(played - self.turns, 0) // self.stride * self.stride

    def segments(self, turns: int) -> int:
        """See `Context`."""
        return len({self.given_up(played) for played in range(turns)})


@dataclass(frozen=True)
class LastObservations(Window):
    """The replies, and the observations of the last `turns` turns."""

    keep: ClassVar[str] = "last"

    def visible_messages(self, messages: Sequence[Message], prompt: int) -> list[Message]:
        """See `Context`."""
        old = range(prompt + 1, prompt + 2 * self.given_up((len(messages) - prompt) // 2), 2)
        return [
            {"role": message["role"], "content": LEFT_OUT} if place in old else message
            for place, message in enumerate(messages)
        ]


@dataclass(frozen=True)
class Summary(Window):
    """The model's own summary in place of what is given up, and the last `turns` turns."""

    keep: ClassVar[str] = "summary"
    instruction: ClassVar[str] = (
        "You will not see earlier turns again. Each reply has one more line, before its action, that carries on what "
        "you must remember of them:\nSummary: what you know, have done and still have to do"
    )

    def visible_messages(self, messages: Sequence[Message], prompt: int) -> list[Message]:
        """See `Context`."""
        end = prompt + 2 * self.given_up((len(messages) - prompt) // 2)
        if end == prompt:
            return list(messages)
        notes = list(filter(None, (summary_in(message["content"]) for message in messages[prompt:end:2])))
        *task, last = messages[:prompt]
        slot = f"Your summary of the turns before: {notes[-1] if notes else '(none)'}"
        return [*task, {"role": last["role"], "content": f"{last['content']}\n\n{slot}"}, *messages[end:]]

    def demo_prefix(self, moves: Sequence[DemoAction]) -> str:
        """See `Context`."""
        return f"Summary: {'; '.join(move.action for move in moves[-RECALLED:]) or 'nothing is done yet'}\n"


def summary_in(reply: str) -> str:
    """The summary that a reply carries on, "" if there is none; what is only thought does not count."""
    return next((text for part in readable(reply) for one in SUMMARY.findall(part) if (text := one.strip("* \n"))), "")


CONTEXTS: Mapping[str, type[Context]] = {kind.keep: kind for kind in (KeepAll, LastObservations, Summary)}


def read_context(settings: Mapping[str, Any]) -> Context:
    """The context that section `agent.context` asks for.

    Raises:
        ConfigError: there is no such one, or it has no such setting.
    """
    values = dict(settings)
    keep = values.pop("keep", KeepAll.keep)
    if not isinstance(keep, str) or keep not in CONTEXTS:
        raise ConfigError(f"agent.context.keep={keep!r} is not known. {did_you_mean(str(keep), CONTEXTS)}")
    kind = CONTEXTS[keep]
    allowed = ("turns", "stride") if kind.edits else ()
    for key in values:
        if key not in ("turns", "stride"):
            raise ConfigError(f"agent.context.{key} is not a setting. Known: keep, turns, stride.")
    return kind(**{key: values[key] for key in allowed if key in values})
