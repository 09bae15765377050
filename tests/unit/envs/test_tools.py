"""Tools: schemas of typed functions, checks of calls, and refusals before a run."""

import datetime
import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, Optional
from urllib.parse import quote

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from verl_agent.actions import ToolCall
from verl_agent.envs.action_format import LineFormat, ToolFormat
from verl_agent.envs.call_error import MISSING, UNKNOWN, UNKNOWN_FUNCTION, WRONG, CallError
from verl_agent.envs.schemas import JsonSchema
from verl_agent.envs.tool_check import check_call
from verl_agent.envs.tools import Tool, arguments, as_tools, tool
from verl_agent.errors import ConfigError


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Item:
    name: str
    count: int = 1


class Place(TypedDict):
    row: int


class Tree(BaseModel):
    name: str
    parts: "list[Tree]" = []


@tool
def order(  # noqa: PLR0913 - one parameter of each type
    patient: str,
    at: datetime.time,
    room: Literal["A", "B"] = "A",
    notes: list[str] | None = None,
    items: list[Item] = [],  # noqa: B006 - pydantic copies it
    place: Optional[Place] = None,  # noqa: UP045 - both spellings are read
    tree: Tree | None = None,
    number: int | str = 3,
    colour: Colour = Colour.RED,
    share: Annotated[float, Field(ge=0, le=1)] = 0.5,
    day: datetime.date | None = None,
) -> str:
    """Order a visit.

    It costs nothing.

    Args:
        patient: full name,
            as in the file.
        share: part of the costs.
    """
    return patient


ORDER = Tool.of(order)
FULL = {
    "patient": " Bob at noon\n",
    "at": "12:30:00",
    "room": "B",
    "notes": ["", "größer"],
    "items": [{"name": "x", "count": 2}],
    "place": {"row": 1},
    "tree": {"name": "t", "parts": [{"name": "u"}]},
    "number": "3",
    "colour": "red",
    "share": 1,
    "day": "2026-02-28",
}


def test_a_schema_comes_from_signature_types_and_docstring():
    properties = ORDER.parameters["properties"]
    assert (ORDER.name, ORDER.description) == ("order", "Order a visit.\nIt costs nothing.")
    assert ORDER.parameters["required"] == ["patient", "at"]
    assert properties["patient"] == {"type": "string", "description": "full name, as in the file."}
    assert properties["room"] == {"type": "string", "default": "A", "enum": ["A", "B"]}
    assert properties["share"]["maximum"] == 1 and properties["share"]["description"] == "part of the costs."
    assert properties["at"]["format"] == "time" and properties["items"]["items"] == {"$ref": "#/$defs/Item"}
    assert "title" not in json.dumps(ORDER.parameters)


def test_arguments_reach_a_function_with_their_types():
    checked = check_call([ORDER], "order", FULL)
    assert not isinstance(checked, CallError), checked
    assert (checked.call, checked.read) == (ToolCall("order", FULL), 0)
    values = dict(checked.values or {})
    assert (values["at"], values["day"]) == (datetime.time(12, 30), datetime.date(2026, 2, 28))
    assert values["items"] == [Item("x", 2)] and values["colour"] is Colour.RED and values["number"] == "3"
    assert values["tree"].parts[0].name == "u" and values["place"] == {"row": 1}


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"patient": 3}, WRONG, "patient = 3 is not allowed: input should be a valid string. Allowed: string."),
        ({"at": "25:00"}, WRONG, 'at = "25:00" is not allowed'),
        ({"room": "C"}, WRONG, 'room = "C" is not allowed: input should be \'A\' or \'B\'. Allowed: "A", "B".'),
        ({"notes": ["a", 2]}, WRONG, "notes[1] = 2 is not allowed"),
        ({"items": [{"name": "x", "cuont": 2}]}, UNKNOWN, "items[0].cuont is no argument"),
        ({"items": [{"name": "x", "count": "y"}]}, WRONG, "a valid integer. Allowed: integer."),
        ({"items": [{"name": "x", "cuont": 2}]}, UNKNOWN, "Did you mean 'count'?"),
        ({"items": [{}]}, MISSING, "items[0].name is missing. Allowed: string."),
        ({"place": {"row": 1, "seat": 2}}, UNKNOWN, "place.seat is no argument"),
        ({"tree": {"name": "t", "parts": [{"nam": "u"}]}}, MISSING, "tree.parts[0].name is missing. Allowed: string."),
        ({"number": []}, WRONG, "number = [] is not allowed: input should be a valid integer; or: input should be a"),
        ({"share": 1.5}, WRONG, "share = 1.5 is not allowed: input should be less than or equal to 1"),
        ({"share": 2**53 + 1}, WRONG, "share = 9007199254740993"),
        ({"patint": "x"}, UNKNOWN, "patint is no argument. Did you mean 'patient'?"),
    ],
)
def test_an_error_names_the_argument_its_value_and_what_is_allowed(change, kind, text):
    checked = check_call([ORDER], "order", {**FULL, **change})
    assert isinstance(checked, CallError) and kind in checked.kinds and text in checked.text


def test_several_errors_are_explained_at_once():
    checked = check_call([ORDER], "order", {"at": 3, "x": 1})
    assert isinstance(checked, CallError)
    assert set(checked.kinds) == {MISSING, WRONG, UNKNOWN}
    assert [line.partition(" ")[0] for line in checked.text.splitlines()[1:]] == ["-", "-", "-"]


@pytest.mark.parametrize(
    ("arguments_", "kinds"),
    [({}, (MISSING,)), ({"a": "x", "b": 1}, (UNKNOWN,)), ({"a": 3}, (WRONG,)), ({"a": [1]}, (WRONG,)), ([1], (WRONG,))],
)
def test_a_tool_of_a_schema_has_the_same_errors(arguments_, kinds):
    checked = check_call([Tool("f", "Does it.", arguments(a={"type": "string"}))], "f", arguments_)
    assert isinstance(checked, CallError) and checked.kinds == kinds


def test_an_unknown_function_has_a_suggestion():
    checked = check_call([ORDER], "ordr", {})
    assert isinstance(checked, CallError) and checked.kinds == (UNKNOWN_FUNCTION,)
    assert "Did you mean 'order'?" in checked.text


@pytest.mark.parametrize(
    ("kind", "written", "read"),
    [
        ("integer", "3", 3),
        ("integer", 3.0, 3),
        ("integer", str(2**63 + 1), 2**63 + 1),
        ("integer", "3.5", None),
        ("integer", "03", None),
        ("integer", "three", None),
        ("integer", True, None),
        ("number", "0.1", 0.1),
        ("number", "0.10000000000000000001", None),
        ("number", "1e999", None),
        ("number", "nan", None),
        ("boolean", "true", True),
        ("boolean", "True", True),
        ("boolean", "yes", None),
        ("boolean", 1, None),
        ("null", "None", "null"),
        ("array", "[1, 2]", [1, 2]),
        ("object", '{"a": 1}', {"a": 1}),
        ("object", '{"a": 1, "a": 2}', None),
        ("string", "3", "3"),
        ("string", 3, None),
    ],
)
def test_text_is_read_as_another_type_only_without_loss(kind, written, read):
    one = Tool("f", "Does it.", arguments(a={"type": kind}))
    checked = check_call([one], "f", {"a": written})
    if read is None:
        assert isinstance(checked, CallError) and checked.kinds == (WRONG,)
        return
    assert not isinstance(checked, CallError)
    value = checked.call.arguments["a"]
    assert value == (None if read == "null" else read) and type(value) is type(None if read == "null" else read)
    assert checked.read == (type(written) is not type(value))


def test_arguments_of_a_megabyte_arrive_and_larger_ones_are_refused():
    one = Tool("f", "Does it.", arguments(a={"type": "string"}))
    checked = check_call([one], "f", {"a": "x" * 2**20})
    assert not isinstance(checked, CallError) and len(checked.call.arguments["a"]) == 2**20
    checked = check_call([one], "f", {"a": "é" * 2**20})
    assert isinstance(checked, CallError) and "Allowed: at most" in checked.text and len(checked.text) < 200


@pytest.mark.parametrize(
    ("step", "fitting", "others"),
    [
        (0.01, [0.07, 19.99, -1.1, 3, 0, 1e22], [0.075, 1e-9, -19.999]),
        (0.5, [10**400, 2.5], [0.3, 0.25]),
        (3, [9, 9.0, -(3 * 10**400)], [10**400, 9.5]),
        (1e-300, [1e300, 1], [1.5e-300]),
    ],
)
def test_multiples_are_those_of_the_written_numbers(step, fitting, others):
    one = Tool("f", "Does it.", arguments(a={"type": "number", "multipleOf": step}))
    for value in fitting:
        assert not isinstance(check_call([one], "f", {"a": value}), CallError), value
    for value in others:
        checked = check_call([one], "f", {"a": value})
        assert isinstance(checked, CallError) and checked.kinds == (WRONG,), value


def test_equality_is_that_of_json():
    assert ToolCall("f", {"a": 1, "b": [True]}) == ToolCall("f", {"b": [True], "a": 1.0})
    assert ToolCall("f", {"a": 1}) != ToolCall("f", {"a": True})
    assert ToolCall("f", {"a": "1"}) != ToolCall("f", {"a": 1})
    assert str(ToolCall("f", {"a": "größer\n"})) == '{"name": "f", "arguments": {"a": "größer\\n"}}'
    assert hash(ToolCall("f", {"a": 1})) == hash(ToolCall("f", {"a": 1.0}))


# Refusals before a run


def untyped(a):
    """Take anything."""


def star(*a: int):
    """Take anything."""


class Unknown:
    """Type without a schema."""


def strange(a: Unknown):
    """Take anything."""


def lacking(a: Callable[[int], int]):
    """Take anything."""


def referring(**parts: object) -> dict[str, object]:
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": parts}}


LOOP = referring(**{"$ref": "#/$defs/a"})
DYNAMIC = referring(items={"$dynamicRef": "#node"})
NESTED = referring(**{"$id": "https://x.org/a", "items": {"$ref": "#/$defs/a"}})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tool.of(untyped), "parameter 'a' has no type"),
        (lambda: Tool.of(star), r"parameter '\*a: int' cannot be given by name"),
        (lambda: Tool.of(strange), "tool 'strange': a type cannot be validated"),
        (lambda: Tool.of(lacking), "tool 'lacking': JSON Schema lacks a type"),
        (lambda: Tool("book it", "Books."), "APIs refuse this name"),
        (lambda: Tool("x" * 65, "Books."), "APIs refuse this name"),
        (lambda: Tool("f", "", {"type": "strin"}), "no JSON Schema"),
        (lambda: Tool("f", "", {"type": "array"}), "have the type 'array'. Allowed: object"),
        (lambda: Tool("f", "", LOOP), "leads back to itself"),
        (lambda: Tool("f", "", DYNAMIC), r"tool 'f': .*\$dynamicRef='#node' .*Allowed: `\$ref` from the root"),
        (lambda: Tool("f", "", NESTED), r"tool 'f': .*\$id='https://x.org/a' .*Allowed: `\$ref` from the root"),
        (lambda: Tool("f", "", {"type": "object", "properties": {"a": {"$ref": "#/no"}}}), "leads to no part"),
        (lambda: Tool("f", "", {"type": "object", "properties": {"a": {"$ref": "#/"}}}), "leads to no part"),
        (
            lambda: Tool("f", "", {"type": "object", "properties": {"a": {"$ref": "https://x.org/"}}}),
            "leads to no part",
        ),
        (lambda: as_tools([Tool("book", "a"), Tool("Book", "b")]), "'book' and 'Book' .* differ only in case"),
        (lambda: as_tools([Tool("book", "a"), Tool("book", "b")]), "'book' and 'book' have the same name"),
        (lambda: as_tools([untyped]), "is no tool. Mark a function with @tool"),
        (lambda: Tool("f", "", arguments(a={"type": "string"}), "f"), "must contain each argument once"),
        (lambda: Tool("f", "", arguments(a={"type": "array"}), "f {a}"), "of one of the types"),
        (lambda: LineFormat((Tool("f", ""),)), "has no line"),
        (lambda: ToolFormat((Tool("f", "", line="f"),)), "Remove the line"),
        (lambda: Tool.from_schema({"parameters": {}}), "describes no function"),
    ],
)
def test_what_no_model_could_use_is_refused_by_name(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_recursive_schema_is_validated():
    schema = {"$defs": {"t": {"type": "object", "properties": {"t": {"$ref": "#/$defs/t"}}, "required": ["n"]}}}
    one = Tool("f", "Does it.", {"type": "object", "properties": {"a": {"$ref": "#/$defs/t"}}, **schema})
    assert not isinstance(check_call([one], "f", {"a": {"n": 1, "t": {"n": 2}}}), CallError)
    checked = check_call([one], "f", {"a": {"n": 1, "t": {}}})
    assert isinstance(checked, CallError) and "a.t.n is missing" in checked.text


@pytest.mark.parametrize("name", ["My Type", "a/b", "~1", "50%", "100%25", "größe", "default", "$id", "$ref", ""])
def test_references_to_parts_of_any_name_are_followed(name):
    reference = "#/$defs/" + quote(name.replace("~", "~0").replace("/", "~1"), safe="")
    union = {"anyOf": [{"$ref": reference}, {"type": "boolean"}]}
    schema = {"type": "object", "properties": {name: union}, "$defs": {name: {"type": "integer"}}}
    one = Tool("f", "Does it.", schema)
    checked = check_call([one], "f", {name: "3"})
    assert not isinstance(checked, CallError) and checked.call.arguments == {name: 3}
    checked = check_call([one], "f", {name: "x"})
    assert isinstance(checked, CallError) and checked.kinds == (WRONG,) and "Allowed: integer" in checked.text


def test_a_nested_id_without_references_changes_nothing():
    one = Tool("f", "Does it.", referring(**{"$id": "https://x.org/a", "type": "integer"}))
    assert not isinstance(check_call([one], "f", {"a": 3}), CallError)
    assert isinstance(check_call([one], "f", {"a": []}), CallError)


def test_a_value_that_a_schema_cannot_check_is_a_wrong_argument():
    endless = Tool("f", "Does it.", referring(allOf=[{"$ref": "#/$defs/a"}]))
    for value in (1, "x"):
        checked = check_call([endless], "f", {"a": value})
        assert isinstance(checked, CallError) and checked.kinds == (WRONG,)
    unchecked = JsonSchema({"properties": {"a": {"$ref": "#/no"}}})
    (error,) = unchecked.errors({"a": 1})
    assert "/no" in error.message


def test_schemas_of_openai_anthropic_and_mcp_are_tools():
    schema = arguments(a={"type": "integer"})
    described = {"name": "f", "description": "Does it."}
    forms = [
        {"type": "function", "function": {**described, "parameters": schema}},
        {**described, "input_schema": schema},
        {**described, "inputSchema": schema},
    ]
    assert {json.dumps(Tool.from_schema(form).schema) for form in forms} == {
        json.dumps(Tool("f", "Does it.", schema).schema)
    }


# Lines


def test_a_line_whose_arguments_could_be_confused_is_refused():
    note = Tool(
        "note", "Note.", arguments(patient={"type": "string"}, text={"type": "string"}), "note {patient} at {text}"
    )
    checked = check_call([note], "note", {"patient": "Bob at noon", "text": "call"})
    assert not isinstance(checked, CallError)
    refused = checked.action()
    assert isinstance(refused, CallError) and "cannot be told apart" in refused.text
    checked = check_call([note], "note", {"patient": " Bob\n", "text": "{text}"})
    assert not isinstance(checked, CallError) and checked.action() == "note  Bob\n at {text}"
