"""Tools: functions that a model may call, with a JSON Schema of their arguments.

A tool is a Python function, see `tool`, or is known by its schema alone, as one of a file or of a server.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, overload

from verl_agent.actions import same_json
from verl_agent.envs.schema_parts import tidy
from verl_agent.envs.schemas import JsonSchema
from verl_agent.envs.strict_json import MAX_DIGITS
from verl_agent.envs.tool_types import adapter_of, first_line
from verl_agent.errors import ConfigError

if TYPE_CHECKING:  # imported where a function becomes a tool
    from pydantic import TypeAdapter

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names that the APIs of OpenAI, Anthropic and Mistral accept."""
MARK = "__verl_agent_tool__"
"""Attribute of a function that `tool` has marked."""
SLOTS: Mapping[str, str] = {
    "string": ".*?",
    "integer": r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?",
    "number": r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?",
    "boolean": "true|false",
}
"""Texts of an argument in a line, by its type."""
F = TypeVar("F", bound=Callable[..., Any])


def arguments(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with these properties, all of them required."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


@dataclass(frozen=True)
class Tool:
    """Function that a model may call.

    Attributes:
        name: name of the function: letters, digits, `_` and `-`, at most 64.
        description: effect of the function, for the model.
        parameters: JSON Schema (draft 2020-12) of the arguments, an object.
        line: in an environment whose actions are lines, the line that carries a call out, with each argument in
            braces: `get {number} {item}`; "" elsewhere.
        function: function that is called; None for a tool that is known by its schema alone.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=arguments)
    line: str = ""
    function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    checked: InitVar[bool] = False
    """True for a schema that pydantic made, which needs no check."""

    def __post_init__(self, checked: bool) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ConfigError(
                f"tool {self.name!r:.100}: APIs refuse this name. Allowed: letters, digits, `_` and `-`, at most 64 "
                "characters."
            )
        if not isinstance(self.description, str):
            raise ConfigError(f"tool {self.name!r}: description={self.description!r:.100} is not a text.")
        if self.line:
            self._check_line()
        elif not checked:
            self.schema_of_arguments.check(f"tool {self.name!r}")

    def _check_line(self) -> None:
        slots, properties = set(re.findall(r"\{(\w+)\}", self.line)), self.parameters.get("properties", {})
        required = set(self.parameters.get("required", ()))
        if not slots == set(properties) == required or any(one.get("type") not in SLOTS for one in properties.values()):
            raise ConfigError(
                f"tool {self.name!r}: line={self.line!r} must contain each argument once, and each must be required "
                f"and of one of the types {', '.join(SLOTS)}. The arguments are {sorted(properties)}."
            )

    @classmethod
    def of(cls, function: Callable[..., Any], bound: bool = False, name: str = "") -> "Tool":
        """Return the tool of a typed function.

        Args:
            function: function whose parameters all have types; its docstring describes them, in the style of Google,
                NumPy or Sphinx.
            bound: leave out the first parameter, `self`.
            name: name where `tool` has none; "" for that of the function.

        Raises:
            ConfigError: a parameter has no type, or one that JSON Schema lacks.
        """
        from docstring_parser import DocstringStyle, parse
        from pydantic.errors import PydanticUserError

        options = getattr(function, MARK, {})
        name = str(options.get("name") or name or getattr(function, "__name__", repr(function)))
        adapter, notes = adapter_of(function, name, bound)
        text = inspect.getdoc(function) or ""
        documented = parse(text, DocstringStyle.GOOGLE)
        if not documented.params:  # that of NumPy or Sphinx
            documented = parse(text, DocstringStyle.AUTO)
        try:
            schema = tidy(adapter.json_schema())
        except PydanticUserError as error:
            raise ConfigError(f"tool {name!r}: JSON Schema lacks a type: {first_line(error)}") from error
        notes |= {one.arg_name: one.description for one in documented.params if one.description}
        for parameter, property_ in schema.get("properties", {}).items():
            if parameter in notes:
                property_.setdefault("description", " ".join(notes[parameter].split()))
            if property_.get("default", "") is None and not JsonSchema(schema).allows(None, property_):
                raise ConfigError(
                    f"tool {name!r}: the default of {parameter!r} is None, which its type refuses. Write `... | None`."
                )
        summary = [documented.short_description or "", documented.long_description or ""]
        described = options.get("description") or "\n".join(filter(None, summary))
        made = cls(name, described, schema, function=function, checked=True)
        made.__dict__["adapter"] = adapter
        return made

    @classmethod
    def from_schema(cls, value: Mapping[str, Any]) -> "Tool":
        """Return the tool of a description in the form of OpenAI, Anthropic or MCP, as in a file or of a server.

        Raises:
            ConfigError: it describes no function.
        """
        function = value.get("function", value) if isinstance(value, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ConfigError(f"tools: {value!r:.200} describes no function. It needs name, description, parameters.")
        keys = ("parameters", "inputSchema", "input_schema")
        schemas = (function[key] for key in keys if function.get(key) is not None)
        return cls(
            function["name"], function.get("description") or "", next(schemas, {"type": "object", "properties": {}})
        )

    @cached_property
    def adapter(self) -> "TypeAdapter[Any] | None":
        """Validator of the function's arguments; None for a tool that is known by its schema alone."""
        return None

    @cached_property
    def schema_of_arguments(self) -> JsonSchema:
        """Schema of the arguments, with its validator."""
        return JsonSchema(self.parameters)

    @property
    def schema(self) -> dict[str, Any]:
        """Description of the function for chat templates and APIs, in OpenAI's format."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def render(self, values: Mapping[str, Any]) -> str | None:
        """Return the line of a call, or None if its arguments could not be told apart in it."""
        texts = {name: value if isinstance(value, str) else _plain(value) for name, value in values.items()}
        line = re.sub(r"\{(\w+)\}", lambda slot: texts[slot[1]], self.line)
        read = self.parse(line)
        return line if read is not None and same_json(read, values) else None

    def parse(self, line: str) -> dict[str, Any] | None:
        """Return the arguments from which `render` builds a line, or None if another tool does."""
        match = self._pattern.fullmatch(line) if self.line else None
        if match is None:
            return None
        values = {name: self._value(name, text) for name, text in match.groupdict().items()}
        return None if None in values.values() else values

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = re.split(r"\{(\w+)\}", self.line)
        slots = (f"(?P<{name}>{SLOTS[self.parameters['properties'][name]['type']]})" for name in parts[1::2])
        texts = map(re.escape, parts[::2])
        return re.compile("".join(text + next(slots, "") for text in texts), re.DOTALL)

    def _value(self, name: str, text: str) -> Any:
        """Return the JSON value of a text in a line; `1.0` is an integer, too. None if it has another type."""
        kind = self.parameters["properties"][name]["type"]
        if kind == "string":
            return text
        if kind == "boolean":
            return text == "true"
        if re.fullmatch(r"[-+]?\d+", text):
            return int(text) if len(text) <= MAX_DIGITS else None
        number = float(text)
        if kind == "integer":
            return int(number) if number.is_integer() and abs(number) <= 2**53 else None
        return number if number not in (float("inf"), float("-inf")) else None

    def __deepcopy__(self, memo: Any) -> "Tool":
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave out validators, which other processes build again; the function travels by its name."""
        return {name: value for name, value in self.__dict__.items() if name in self.__dataclass_fields__}


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(*, name: str | None = None, description: str | None = None) -> Callable[[F], F]: ...
def tool(function: F | None = None, /, *, name: str | None = None, description: str | None = None) -> Any:
    """Mark a typed function as a tool, so that a model may call it.

    Name, description and schema come from its signature, its types and its docstring (in the style of Google, NumPy or
    Sphinx). The function itself stays as it is. It may be asynchronous.

    Args:
        function: function or method of a `ToolEnv`.
        name: name for the model; None for that of the function.
        description: description for the model; None for that of the docstring.

    Example:
        >>> @tool
        ... def add(first: int, second: int = 1) -> str:
        ...     '''Add two numbers.'''
        ...     return str(first + second)
        >>> len(Tool.of(add).parameters["required"])
        1
    """

    def mark(marked: F) -> F:
        setattr(marked, MARK, {"name": name, "description": description})
        return marked

    return mark if function is None else mark(function)


def is_tool(value: object) -> bool:
    """Return True if `tool` has marked a function."""
    return hasattr(value, MARK) and callable(value)


def as_tools(values: Sequence[Any]) -> tuple[Tool, ...]:
    """Return tools, of which some may be given as marked functions.

    Raises:
        ConfigError: one is neither a tool nor a marked function, or two have the same name, also in another case.
    """
    tools: list[Tool] = []
    for value in values:
        if not isinstance(value, Tool) and not is_tool(value):
            raise ConfigError(f"tools: {value!r:.100} is no tool. Mark a function with @tool, or make a Tool(...).")
        tools.append(value if isinstance(value, Tool) else Tool.of(value))
    names: dict[str, str] = {}
    for one in tools:
        if (other := names.get(one.name.lower())) is not None:
            raise ConfigError(
                f"tools: {other!r} and {one.name!r} have the same name, or differ only in case. Rename one of them."
            )
        names[one.name.lower()] = one.name
    return tuple(tools)


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
