"""How an action is marked in a reply: what an environment says about its actions, whatever agent plays it."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from verl_agent.envs.parsing import first_tag, last_action, last_fence
from verl_agent.errors import EnvError

TYPES: Mapping[str, type] = {"string": str, "integer": int, "number": float, "boolean": bool}
"""Types of a tool's parameters, as JSON Schema names them."""
MAX_DIGITS = 15
"""Characters that a number may have; more would not be exact."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a tool; all are required.

    Attributes:
        name: as the tool's `action` has it in braces.
        type: `string`, `integer`, `number` or `boolean`.
        description: for the model.
    """

    name: str
    type: str = "string"
    description: str = ""

    def read(self, value: Any) -> str | None:
        """A value as text, or None if it is not of the type; numbers written as texts are taken."""
        text = " ".join(str(value).split())
        if self.type == "boolean" or isinstance(value, bool):
            return text.lower() if self.type == "boolean" and isinstance(value, bool) else None
        if not isinstance(value, str | int | float) or not text:
            return None
        if self.type == "string":
            return text
        try:
            read = float(text) if len(text) <= MAX_DIGITS else None
        except ValueError:
            return None
        if read is None or not math.isfinite(read) or (self.type == "integer" and not read.is_integer()):
            return None
        return str(int(read)) if self.type == "integer" else text


@dataclass(frozen=True, slots=True)
class Tool:
    """One action as a function that a model may call.

    Attributes:
        name: of the function.
        description: what it does.
        action: the environment's own words for it, with the parameters in braces: `get {number} {item}`.
        parameters: in the order in which the model is told of them.
    """

    name: str
    description: str
    action: str
    parameters: tuple[Parameter, ...] = ()

    @property
    def schema(self) -> dict[str, Any]:
        """The function as chat templates take it (OpenAI's format)."""
        properties = {p.name: {"type": p.type, "description": p.description} for p in self.parameters}
        parameters = {"type": "object", "properties": properties, "required": [p.name for p in self.parameters]}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def render(self, arguments: Mapping[str, Any]) -> str | None:
        """The action for these arguments, or None where one is missing or of another type."""
        values = {p.name: p.read(arguments[p.name]) for p in self.parameters if p.name in arguments}
        if len(values) < len(self.parameters) or None in values.values():
            return None
        return self.action.format(**values)

    def parse(self, action: str) -> dict[str, Any] | None:
        """The arguments that `render` makes `action` of, or None if it is not this tool's."""
        pattern = "".join(
            f"(?P<{part[1:-1]}>.+?)" if part.startswith("{") else re.escape(part)
            for part in re.split(r"(\{\w+\})", self.action)
        )
        found = re.fullmatch(pattern, action)
        if found is None:
            return None
        texts = found.groupdict()
        if any(p.read(texts[p.name]) is None for p in self.parameters if p.type != "boolean"):
            return None
        return {p.name: _value(p, texts[p.name]) for p in self.parameters}


@dataclass(frozen=True)
class ActionFormat(ABC):
    """How replies mark an action.

    Attributes:
        tools: the actions as functions, for agents that call them; without any there is one, `act`, that takes the
            action as text.
    """

    kind: ClassVar[str]
    tools: tuple[Tool, ...] = ()

    @property
    @abstractmethod
    def template(self) -> str:
        """What a marked action looks like, with words in place of the action."""

    @abstractmethod
    def parse(self, reply: str) -> str | None:
        """The action in a reply, without its marks, or None."""

    @abstractmethod
    def format(self, action: str) -> str:
        """An action as a reply has it: `parse(format(action)) == action`."""


@dataclass(frozen=True)
class LineFormat(ActionFormat):
    """The text after the last `Action:`, up to the end of its line.

    Attributes:
        placeholder: what stands for the action when the form is explained.
    """

    kind: ClassVar[str] = "line"
    placeholder: str = "<action>"

    @property
    def template(self) -> str:
        """See `ActionFormat`."""
        return f"Action: {self.placeholder}"

    def parse(self, reply: str) -> str | None:
        """See `ActionFormat`."""
        return last_action(reply)

    def format(self, action: str) -> str:
        """See `ActionFormat`."""
        return f"Action: {action}"


@dataclass(frozen=True)
class TagFormat(ActionFormat):
    """The first of some tags, such as `<search>words</search>`; the action keeps its tag.

    Attributes:
        tags: name of each tag, and the words that stand for its text when the form is explained.
    """

    kind: ClassVar[str] = "tag"
    tags: tuple[tuple[str, str], ...] = ()

    @property
    def template(self) -> str:
        """See `ActionFormat`."""
        return " or ".join(f"<{name}>{words}</{name}>" for name, words in self.tags)

    def parse(self, reply: str) -> str | None:
        """See `ActionFormat`."""
        found = first_tag(reply, [name for name, _ in self.tags])
        return f"<{found[0]}>{found[1]}</{found[0]}>" if found else None

    def format(self, action: str) -> str:
        """See `ActionFormat`."""
        return action

    def split(self, action: str) -> tuple[str, str] | None:
        """Name and text of an action, or None if it is none of this form."""
        found = first_tag(action, [name for name, _ in self.tags])
        return found if found and found[1] else None


@dataclass(frozen=True)
class FenceFormat(ActionFormat):
    """The text inside the last triple backticks.

    Attributes:
        placeholder: what stands for the action when the form is explained.
    """

    kind: ClassVar[str] = "fence"
    placeholder: str = "<action>"

    @property
    def template(self) -> str:
        """See `ActionFormat`."""
        return f"```{self.placeholder}```"

    def parse(self, reply: str) -> str | None:
        """See `ActionFormat`."""
        return last_fence(reply)

    def format(self, action: str) -> str:
        """See `ActionFormat`."""
        return f"```{action}```"


FORMS: Mapping[str, type[ActionFormat]] = {form.kind: form for form in (LineFormat, TagFormat, FenceFormat)}


def action_format_to_json(action_format: ActionFormat) -> dict[str, Any]:
    """A form as JSON, for clients on other machines."""
    return {"kind": action_format.kind, **asdict(action_format)}


def action_format_from_json(value: Any) -> ActionFormat:
    """The form that `action_format_to_json` wrote.

    Raises:
        EnvError: it is none that this version knows.
    """
    try:
        fields = dict(value)
        kind = FORMS[fields.pop("kind")]
        fields["tools"] = tuple(
            Tool(**{**tool, "parameters": tuple(Parameter(**p) for p in tool["parameters"])})
            for tool in fields.get("tools", ())
        )
        if "tags" in fields:
            fields["tags"] = tuple((str(name), str(words)) for name, words in fields["tags"])
        return kind(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise EnvError(f"the form of the actions, {value!r}, is not known here: {error!r}.") from error


def _value(parameter: Parameter, text: str) -> Any:
    kind = TYPES[parameter.type]
    return text == "true" if kind is bool else kind(text)
