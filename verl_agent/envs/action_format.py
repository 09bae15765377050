"""Formats in which a reply marks its action.

An environment declares its format; every agent explains it to the model and reads replies by it. Parsing returns the
action as the model wrote it: quotes, line breaks, indentation and inner spaces stay.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from os.path import commonprefix
from typing import Any, ClassVar

from typing_extensions import override

from verl_agent.actions import Action
from verl_agent.envs.call_format import IN_THOUGHTS
from verl_agent.envs.call_formats import ActionJson
from verl_agent.envs.parsing import first_tag, last_action, last_fence, thought_marks
from verl_agent.envs.strict_json import read_json
from verl_agent.envs.tools import Tool, as_tools
from verl_agent.errors import AgentError, ConfigError, EnvError
from verl_agent.types import ToolCall


@dataclass(frozen=True)
class ActionFormat(ABC):
    """Mark around the action in a reply.

    Attributes:
        tools: the actions as functions, for agents that call functions; each has a `line`. Without tools such an agent
            offers one function, `act`, which takes the action as text.
    """

    kind: ClassVar[str]
    tools: tuple[Tool, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", as_tools(self.tools))
        self._check_tools()

    def _check_tools(self) -> None:
        for tool in self.tools:
            if not tool.line:
                kind = f"tool {tool.name!r} has no line, but actions of a {type(self).__name__} are texts."
                raise ConfigError(f"{kind} Add line=..., or derive the environment from ToolEnv.")

    @property
    @abstractmethod
    def template(self) -> str:
        """Example of a marked action, with a placeholder for the action."""

    @abstractmethod
    def parse(self, reply: str) -> Action | None:
        """Return the action in a reply, without its mark, or None."""

    @abstractmethod
    def format(self, action: Action) -> str:
        """Return `action` with its mark: `parse(format(action)) == action`."""

    def marks(self, reply: str) -> list[tuple[int, int]]:
        """Return start and end of each tag around the action, which a model may have as a token of its own."""
        return []

    @property
    def listing(self) -> str:
        """Explanation of the actions for a model to which no functions are listed; "" if the rules explain them."""
        return ""

    def from_text(self, text: str) -> Action:
        """Return the action that a person or another program has written without a mark."""
        return text

    def action_with(self, text: str) -> str:
        """Return an action that contains `text`, for checks of the format."""
        return text

    @property
    def mark(self) -> str:
        """Text before every marked action, without a space at its end."""
        return self.format(self.action_with("§")).partition("§")[0].rstrip()


@dataclass(frozen=True)
class LineFormat(ActionFormat):
    """The line after the last `Action:`.

    It holds one line: an action with line breaks needs a `FenceFormat` or a `TagFormat`.

    Attributes:
        placeholder: text in place of the action in the explanation for the model.
    """

    kind: ClassVar[str] = "line"
    placeholder: str = "<action>"

    @override
    @property
    def template(self) -> str:
        return f"Action: {self.placeholder}"

    @override
    def parse(self, reply: str) -> str | None:
        """One balanced pair of backticks or asterisks around the line is removed."""
        return last_action(reply)

    @override
    def format(self, action: Action) -> str:
        """Backticks protect an action that `parse` would otherwise change."""
        action = str(action)
        plain = f"Action: {action}"
        if self.parse(plain) == action:
            return plain
        ticks = _longer_ticks(action, 1)
        protected = f"Action: {ticks} {action} {ticks}"
        return protected if self.parse(protected) == action else plain


@dataclass(frozen=True)
class TagFormat(ActionFormat):
    """The first of some tags, for example `<search>words</search>`; the action keeps its tag.

    Attributes:
        tags: name of each tag, and its placeholder text in the explanation for the model.
    """

    kind: ClassVar[str] = "tag"
    tags: tuple[tuple[str, str], ...] = ()

    @override
    @property
    def template(self) -> str:
        return " or ".join(f"<{name}>{placeholder}</{name}>" for name, placeholder in self.tags)

    @override
    def parse(self, reply: str) -> str | None:
        tag = first_tag(reply, [name for name, _ in self.tags])
        return _tagged(*tag) if tag else None

    @override
    def format(self, action: Action) -> str:
        return str(action)

    @override
    def marks(self, reply: str) -> list[tuple[int, int]]:
        start = max((end for _, end in thought_marks(reply)), default=0)
        names = "|".join(re.escape(name) for name, _ in self.tags)
        tag = re.compile(rf"(<({names})>)(?:.*?(</\2>))?", re.DOTALL).search(reply, start)
        return [tag.span(group) for group in (1, 3) if tag[group]] if tag else []

    @override
    def action_with(self, text: str) -> str:
        return _tagged(self.tags[0][0], text)

    @override
    @property
    def mark(self) -> str:
        """The beginning that all tags share."""
        return commonprefix([f"<{name}>" for name, _ in self.tags])  # noqa: RUF071 - of text, not of paths

    def split(self, action: str) -> tuple[str, str] | None:
        """Return name and text of an action, or None if it has no tag of this format or no text."""
        tag = first_tag(action, [name for name, _ in self.tags])
        return tag if tag and tag[1] else None


@dataclass(frozen=True)
class FenceFormat(ActionFormat):
    """The text inside the last triple backticks; it may have several lines.

    Attributes:
        placeholder: text in place of the action in the explanation for the model.
    """

    kind: ClassVar[str] = "fence"
    placeholder: str = "<action>"

    @override
    @property
    def template(self) -> str:
        return f"```{self.placeholder}```"

    @override
    def parse(self, reply: str) -> str | None:
        return last_fence(reply)

    @override
    def format(self, action: Action) -> str:
        """An action with line breaks or backticks stands between lines of backticks."""
        action = str(action)
        inline = f"```{action}```"
        if self.parse(inline) == action:
            return inline
        ticks = _longer_ticks(action, 3)
        return f"{ticks}\n{action}\n{ticks}"


ACTION_JSON = ActionJson()


@dataclass(frozen=True)
class ToolFormat(ActionFormat):
    """Calls of functions as JSON, for environments whose actions are calls (`ToolEnv`).

    An agent that calls functions uses the format of the model's family instead. Other agents write
    `Action: {"name": ..., "arguments": {...}}`.
    """

    kind: ClassVar[str] = "tool"

    @override
    def _check_tools(self) -> None:
        if lines := [tool.name for tool in self.tools if tool.line]:
            raise ConfigError(f"tool {lines[0]!r} has a line, but the actions here are calls. Remove the line.")

    @override
    @property
    def template(self) -> str:
        return 'Action: {"name": "<function>", "arguments": {<its arguments>}}'

    @override
    @property
    def listing(self) -> str:
        schemas = [json.dumps(tool.schema["function"], ensure_ascii=False) for tool in self.tools]
        return "\n".join(["An action is the call of one of these functions, as JSON:", *schemas])

    @override
    def parse(self, reply: str) -> Action | None:
        """Of several calls the last one counts. A call that cannot be read stays a text, which `ToolEnv` explains."""
        found = ACTION_JSON.read(reply)
        if not found or found[-1].error is IN_THOUGHTS:
            return None
        if found[-1].error is not None or not isinstance(found[-1].arguments, dict | None):
            return ACTION_JSON.opening.split(reply)[-1].strip()
        return ToolCall(found[-1].name, found[-1].arguments or {})

    @override
    def format(self, action: Action) -> str:
        return f"Action: {action}"

    @override
    def action_with(self, text: str) -> Any:
        return ToolCall(self.tools[0].name if self.tools else "act", {"text": text})

    @override
    @property
    def mark(self) -> str:
        return "Action:"

    @override
    def from_text(self, text: str) -> Action:
        return self._read(text) or text

    @staticmethod
    def _read(text: str) -> ToolCall | None:
        try:
            value = read_json(text)
            return ToolCall.from_json({"arguments": {}, **value} if isinstance(value, dict) else value)
        except ValueError:
            return None


FORMATS: Mapping[str, type[ActionFormat]] = {
    kind.kind: kind for kind in (LineFormat, TagFormat, FenceFormat, ToolFormat)
}


def action_format_to_json(action_format: ActionFormat) -> dict[str, Any]:
    """Return a format as JSON, for clients on other machines; they know its tools by their schemas."""
    own = {field.name: getattr(action_format, field.name) for field in fields(action_format)}
    tools = [
        {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters), "line": tool.line}
        for tool in action_format.tools
    ]
    return {"kind": action_format.kind, **own, "tools": tools}


def action_format_from_json(value: Any) -> ActionFormat:
    """Return the format that `action_format_to_json` wrote."""
    try:
        values = dict(value)
        kind = FORMATS[values.pop("kind")]
        values["tools"] = tuple(Tool(**tool) for tool in values.get("tools", ()))
        if "tags" in values:
            values["tags"] = tuple((str(name), str(placeholder)) for name, placeholder in values["tags"])
        return kind(**values)
    except (AgentError, KeyError, TypeError, ValueError) as error:
        raise EnvError(f"the action format {value!r:.300} is not known to this version: {error!r}.") from error


def _tagged(name: str, text: str) -> str:
    """Return `text` in a tag; a line break before it protects its indentation."""
    return f"<{name}>{chr(10) if text[:1].isspace() else ''}{text}</{name}>"


def _longer_ticks(action: str, least: int) -> str:
    """Return more backticks than `action` has in a row."""
    return "`" * max([least, *(len(ticks) + 1 for ticks in re.findall("`+", action))])
