"""Formats in which a reply marks its action, and the actions of an environment as functions.

An environment declares its format; every agent explains it to the model and reads replies by it. Parsing returns the
action as the model wrote it: quotes, line breaks, indentation and inner spaces stay.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from os.path import commonprefix
from typing import Any, ClassVar

from typing_extensions import override

from verl_agent.envs.parsing import first_tag, last_action, last_fence, trim
from verl_agent.errors import EnvError

TYPES: Mapping[str, type] = {"string": str, "integer": int, "number": float, "boolean": bool}
"""Types of a tool's parameters, by their names in JSON Schema."""
MAX_DIGITS = 15
"""Most characters of a number; a longer one would lose digits."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a tool; every parameter is required.

    Attributes:
        name: name of the parameter, in braces in the tool's `action`.
        type: `string`, `integer`, `number` or `boolean`.
        description: explanation for the model.
    """

    name: str
    type: str = "string"
    description: str = ""

    def read(self, value: Any) -> str | None:
        """Return `value` as text, or None if it has another type. A number may be written as text.

        Strings keep their inner line breaks and spaces.
        """
        if self.type == "boolean" or isinstance(value, bool):
            return str(value).lower() if self.type == "boolean" and isinstance(value, bool) else None
        text = trim(str(value))
        if not isinstance(value, str | int | float) or not text:
            return None
        if self.type == "string":
            return text
        try:
            number = float(text) if len(text) <= MAX_DIGITS else None
        except ValueError:
            return None
        if number is None or not math.isfinite(number) or (self.type == "integer" and not number.is_integer()):
            return None
        return str(int(number)) if self.type == "integer" else text.strip()

    def value(self, text: str) -> Any:
        """Return the JSON value of a text that `read` accepts; `1.0` is an integer too."""
        if self.type == "integer":
            return int(float(text))
        return text == "true" if self.type == "boolean" else TYPES[self.type](text)


@dataclass(frozen=True, slots=True)
class Tool:
    """One action as a function that a model may call.

    Attributes:
        description: effect of the function, for the model.
        action: the environment's own syntax, with the parameters in braces: `get {number} {item}`.
        parameters: parameters in the order in which the model reads them.
    """

    name: str
    description: str
    action: str
    parameters: tuple[Parameter, ...] = ()

    @property
    def schema(self) -> dict[str, Any]:
        """Description of the function for chat templates, in OpenAI's format."""
        properties = {p.name: {"type": p.type, "description": p.description} for p in self.parameters}
        parameters = {"type": "object", "properties": properties, "required": [p.name for p in self.parameters]}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def render(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the action for `arguments`, or None if one is missing or has the wrong type."""
        values = {p.name: p.read(arguments[p.name]) for p in self.parameters if p.name in arguments}
        if len(values) < len(self.parameters) or None in values.values():
            return None
        return self.action.format(**values)

    def parse(self, action: str) -> dict[str, Any] | None:
        """Return the arguments from which `render` builds `action`, or None if another tool does."""
        pattern = "".join(
            f"(?P<{part[1:-1]}>.+?)" if part.startswith("{") else re.escape(part)
            for part in re.split(r"(\{\w+\})", self.action)
        )
        match = re.fullmatch(pattern, action, re.DOTALL)
        if match is None:
            return None
        texts = match.groupdict()
        if any(p.read(texts[p.name]) is None for p in self.parameters if p.type != "boolean"):
            return None
        return {p.name: p.value(texts[p.name]) for p in self.parameters}


@dataclass(frozen=True)
class ActionFormat(ABC):
    """Mark around the action in a reply.

    Attributes:
        tools: the actions as functions, for agents that call functions. Without tools such an agent offers one
            function, `act`, which takes the action as text.
    """

    kind: ClassVar[str]
    tools: tuple[Tool, ...] = ()

    @property
    @abstractmethod
    def template(self) -> str:
        """Example of a marked action, with a placeholder for the action."""

    @abstractmethod
    def parse(self, reply: str) -> str | None:
        """Return the action in a reply, without its mark, or None."""

    @abstractmethod
    def format(self, action: str) -> str:
        """Return `action` with its mark: `parse(format(action)) == action`."""

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
    def format(self, action: str) -> str:
        """Backticks protect an action that `parse` would otherwise change."""
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
    def format(self, action: str) -> str:
        return action

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
    def format(self, action: str) -> str:
        """An action with line breaks or backticks stands between lines of backticks."""
        inline = f"```{action}```"
        if self.parse(inline) == action:
            return inline
        ticks = _longer_ticks(action, 3)
        return f"{ticks}\n{action}\n{ticks}"


FORMATS: Mapping[str, type[ActionFormat]] = {kind.kind: kind for kind in (LineFormat, TagFormat, FenceFormat)}


def action_format_to_json(action_format: ActionFormat) -> dict[str, Any]:
    """Return a format as JSON, for clients on other machines."""
    return {"kind": action_format.kind, **asdict(action_format)}


def action_format_from_json(value: Any) -> ActionFormat:
    """Return the format that `action_format_to_json` wrote."""
    try:
        fields = dict(value)
        kind = FORMATS[fields.pop("kind")]
        fields["tools"] = tuple(
            Tool(**{**tool, "parameters": tuple(Parameter(**p) for p in tool["parameters"])})
            for tool in fields.get("tools", ())
        )
        if "tags" in fields:
            fields["tags"] = tuple((str(name), str(placeholder)) for name, placeholder in fields["tags"])
        return kind(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise EnvError(f"the action format {value!r} is not known to this version: {error!r}.") from error


def _tagged(name: str, text: str) -> str:
    """Return `text` in a tag; a line break before it protects its indentation."""
    return f"<{name}>{chr(10) if text[:1].isspace() else ''}{text}</{name}>"


def _longer_ticks(action: str, least: int) -> str:
    """Return more backticks than `action` has in a row."""
    return "`" * max([least, *(len(ticks) + 1 for ticks in re.findall("`+", action))])
