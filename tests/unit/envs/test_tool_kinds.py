"""Test functions of all kinds as tools, and errors that name the branch of a union that was meant."""

import enum
import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel

import verl_agent as va
from verl_agent.agents.functions import FunctionCalls
from verl_agent.errors import ConfigError


class Shed(va.ToolEnv):
    """Environment of one task."""

    def tasks(self, split):
        return [va.TaskItem("shed", "1")]

    async def reset(self, item):
        return [{"role": "user", "content": "Begin."}]


def answer(env: va.ToolEnv, reply: str, calls: str = "hermes") -> str:
    agent = FunctionCalls(env.action_format, calls=calls)
    episode = va.play_sync(env.tasks("test")[0], env, agent=agent, policy=lambda messages: reply, max_turns=1)
    return str(episode.messages[-1]["content"])


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def without_wraps(function):
    def wrapper(self, number: int) -> str:
        return function(self, number) + "!"

    return wrapper


def make(kind: str):
    @va.tool
    def trade(self, number: int) -> str:
        """Trade."""
        return f"{kind} {number} for {self.price}"

    return trade


class Kinds(Shed):
    price = 3

    @va.tool
    @staticmethod
    def outer_static(number: int) -> str:
        """Static."""
        return f"static {number}"

    @staticmethod
    @va.tool
    def inner_static(number: int) -> str:
        """Static."""
        return f"static {number}"

    @va.tool
    @classmethod
    def outer_class(cls, number: int) -> str:
        """Of the class."""
        return f"{cls.__name__} {number}"

    @classmethod
    @va.tool
    def inner_class(cls, number: int) -> str:
        """Of the class."""
        return f"{cls.__name__} {number}"

    @va.tool
    @without_wraps
    def decorated(self, number: int) -> str:
        """Decorated."""
        return f"decorated {number}"

    buy, sell = make("buy"), make("sell")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("outer_static", "static 1"),
        ("inner_static", "static 1"),
        ("outer_class", "Kinds 1"),
        ("inner_class", "Kinds 1"),
        ("decorated", "decorated 1!"),
        ("buy", "buy 1 for 3"),
        ("sell", "sell 1 for 3"),
    ],
)
def test_functions_of_every_kind_are_tools_under_their_names(name, text):
    assert answer(Kinds(), call(name, number=1)) == text


def test_an_instance_may_hide_the_method_of_its_tool():
    env = Kinds()
    env.buy = {"a": 1}
    assert answer(env, call("buy", number=1)) == "buy 1 for 3"


@pytest.mark.parametrize("name", ["tasks", "reset", "close", "step", "tools", "oracle_turns", "draw", "after_call"])
def test_a_tool_that_hides_what_an_environment_has_is_refused(name):
    def hides(self) -> str:
        """Hide."""
        return ""

    with pytest.raises(ConfigError, match=f"Bad: the tool '{name}' hides.*@tool\\(name='{name}'\\)"):
        type("Bad", (Shed,), {name: va.tool(hides)})
    other = type("Good", (Shed,), {f"do_{name}": va.tool(name=name)(hides)})
    assert [tool.name for tool in other.action_format.tools] == [name]


def none_by_default(self, number: int = None) -> str:  # noqa: RUF013
    """Refused."""


def read_lazily(self, numbers: list[Iterable[int]]) -> str:
    """Refused."""


def of_no_type(self, spot: "Spott") -> str:  # noqa: F821
    """Refused."""


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (none_by_default, r"the default of 'number' is None, which its type refuses\. Write `\.\.\. \| None`"),
        (read_lazily, r"would be checked while the function reads it\. Write list"),
        (of_no_type, r"NameError.*Define them at the top of the module"),
    ],
)
def test_a_parameter_that_would_fail_later_is_refused_when_the_class_is_made(function, reason):
    with pytest.raises(ConfigError, match=reason):
        type("Bad", (Shed,), {"act": va.tool(function)})


def google(self, seats: int, row: Annotated[str, "letter of the row"] = "A") -> str:
    """Book.

    Args:
        seats: number of seats.
    """


def numpy(self, seats: int, row: Annotated[str, "letter of the row"] = "A") -> str:
    """Book.

    Parameters
    ----------
    seats : int
        number of seats.
    """


def sphinx(self, seats: int, row: Annotated[str, "letter of the row"] = "A") -> str:
    """Book.

    :param seats: number of seats.
    """


@pytest.mark.parametrize("function", [google, numpy, sphinx])
def test_descriptions_come_from_docstrings_of_each_style_and_from_annotations(function):
    (tool,) = type("Seats", (Shed,), {"book": va.tool(function)}).action_format.tools
    described = {name: one["description"] for name, one in tool.parameters["properties"].items()}
    assert (tool.name, tool.description) == ("book", "Book.")
    assert described == {"seats": "number of seats.", "row": "letter of the row"}


class Square(BaseModel):
    kind: Literal["square"]
    side: int


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: int


class Named(BaseModel):
    name: str
    size: float


class Route(BaseModel):
    name: str
    stops: list[int]
    length: float


class Lamp(enum.IntEnum):
    OFF = 0
    ON = 1


class Unions(Shed):
    @va.tool
    def draw_shape(self, shape: Square | Circle | None) -> str:
        """Draw."""
        return repr(shape)

    @va.tool
    def pick(self, value: Named | list[int] | int) -> str:
        """Pick."""
        return repr(value)

    @va.tool
    def travel(self, by: Route | Named) -> str:
        """Travel."""
        return repr(by)

    @va.tool
    def switch(self, lamp: Lamp, step: Literal[1, 2] = 1, more: list[Lamp] | None = None) -> str:
        """Switch."""
        return f"{lamp!r} {step!r} {more!r}"


@pytest.mark.parametrize(
    ("reply", "problems"),
    [
        (call("draw_shape", shape={"kind": "circle", "side": 3}), ["shape.radius is missing", "shape.side is no"]),
        (call("draw_shape", shape={"kind": "square", "side": "x"}), ['shape.side = "x" is not allowed']),
        (call("pick", value={"name": "a"}), ["value.size is missing"]),
        (call("pick", value={"name": "a", "size": 1, "sise": 1}), ["value.sise is no argument. Did you mean 'size'?"]),
        (call("travel", by={"name": "a", "sise": 1}), ["by.size is missing", "by.sise is no argument"]),
        (call("pick", value=[1, "b"]), ['value[1] = "b" is not allowed']),
        (call("pick", value="b"), ['value = "b" is not allowed: input should be an object; or']),
        (call("switch", lamp=True), ["lamp = true is not allowed: it is not one of the values. Allowed: 0, 1."]),
        (call("switch", lamp=1, step=True), ["step = true is not allowed: it is not one of the values"]),
        (call("switch", lamp=1, more=[0, True]), ["more[1] = true is not allowed: it is not one of the values"]),
    ],
)
def test_an_error_names_the_branch_that_was_meant_and_nothing_else(reply, problems):
    lines = answer(Unions(), reply).partition(" was not called:")[2].strip().split("\n")
    assert len(lines) == len(problems)
    for line, problem in zip(lines, problems, strict=True):
        assert line.removeprefix("- ").startswith(problem)


def xml(value: str) -> str:
    return f"<tool_call>\n<function=pick>\n<parameter=value>\n{value}\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ('{"name": "a", "size": "big"}', 'value.size = "big" is not allowed'),
        ('[1, "b"]', 'value[1] = "b" is not allowed'),
        ('{"name": "a"', 'value = "{\\"name\\": \\"a\\"" is not allowed'),
    ],
)
def test_a_value_that_a_family_writes_as_text_is_explained_like_any_other(value, problem):
    assert f"pick was not called: {problem}" in answer(Unions(), xml(value), "qwen3_coder")


@pytest.mark.parametrize("cut", ["<tool_call>\n<function=pick>\n<parameter=value>\n[1,", xml("[1]")[:-24]])
def test_nothing_is_said_to_be_unread_behind_a_call_that_is_cut(cut):
    assert answer(Unions(), cut, "qwen3_coder").endswith("Write the whole call again.")


def test_a_number_of_many_digits_is_refused_in_plain_words():
    reply = call("pick", value=1).replace("1", "9" * 4301)
    assert "has more than 4300 digits. Write the whole call again." in answer(Unions(), reply)


def test_a_turn_with_several_faulty_calls_is_one_invalid_turn():
    env = Unions()
    agent = FunctionCalls(env.action_format)
    reply = call("pick") + call("pick") + call("pick", value=1)
    episode = va.play_sync(env.tasks("test")[0], env, agent=agent, policy=lambda messages: reply, max_turns=1)
    info = episode.turns[0].step.info
    assert (info["invalid_action"], info["calls"], info["call_error"]) == (1.0, 3.0, 2.0)


def test_a_policy_that_has_no_further_reply_is_an_error_and_waits_for_nothing():
    env, replies = Unions(), iter([call("pick", value=1)])
    with pytest.raises(ConfigError, match="StopIteration: an iterator in it has no further value"):
        va.play_sync(env.tasks("test")[0], env, agent="tools", policy=lambda messages: next(replies), max_turns=3)
