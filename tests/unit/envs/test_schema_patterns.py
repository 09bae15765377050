"""Test patterns of JSON Schemas: those of ECMA-262 keep their meaning, and no text of a model lets one take minutes."""

import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from verl_agent.envs.schemas import JsonSchema
from verl_agent.envs.tools import Tool
from verl_agent.errors import ConfigError

SLOW = "^(a|a)*$"
TEXT = "a" * 40 + "!"


def tool(schema: Any) -> Tool:
    return Tool.from_schema({"name": "t", "inputSchema": {"type": "object", **schema}})


def problems(schema: Any, value: Any) -> list[str]:
    one = JsonSchema({"type": "object", **schema})
    one.check("t")
    return [error.message for error in one.errors(one.read(value)[0])]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"properties": {"a": {"type": "string", "pattern": SLOW}}}, {"a": TEXT}),
        ({"properties": {"a": {"items": {"pattern": SLOW}}}}, {"a": [TEXT] * 1000}),
        ({"patternProperties": {SLOW: {}}}, {TEXT: 1}),
        ({"patternProperties": {SLOW: {}}, "additionalProperties": False}, {TEXT: 1}),
        ({"propertyNames": {"pattern": SLOW}}, {TEXT: 1}),
        ({"properties": {"a": {"not": {"pattern": SLOW}}}}, {"a": TEXT}),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"pattern": SLOW}}}, {"a": TEXT}),
        (
            {"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": SLOW}}},
            {"a": TEXT},
        ),
        (
            {"properties": {"default": {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": SLOW}}},
            {"default": TEXT},
        ),
    ],
)
def test_a_pattern_that_takes_too_long_is_an_invalid_argument_within_seconds(schema, value):
    started = time.perf_counter()
    (problem,) = problems(schema, value)
    assert "takes too long to compare with '^(a|a)*$'" in problem
    assert time.perf_counter() - started < 20  # without a limit: years


CHECKS = """
from verl_agent.envs.schemas import JsonSchema
patterns = [{"pattern": "b{1,%d}c" % n} for n in range(1, 100)]
schema = JsonSchema({"type": "object", "properties": {"a": {"allOf": patterns}}})
print("begins", flush=True)
for _ in range(400):
    assert not list(schema.errors({"a": "abc"}))
"""


def test_a_process_that_has_to_wait_for_the_processor_loses_no_time_of_its_checks():
    with subprocess.Popen([sys.executable, "-c", CHECKS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "begins\n"
        for _ in range(3):
            time.sleep(0.05)  # checks go on
            process.send_signal(signal.SIGSTOP)
            time.sleep(1.2)  # longer than PATTERN_S
            process.send_signal(signal.SIGCONT)
    assert process.returncode == 0


def test_the_pattern_that_hung_is_answered():
    one = tool({"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}})
    checked = JsonSchema(one.parameters)
    (error,) = checked.errors({"a": "a" * 28 + "!"})
    assert "does not match" in error.message
    assert not list(checked.errors({"a": "aaa"}))


@pytest.mark.parametrize(
    ("pattern", "fits", "differs"),
    [
        ("b", "abc", "ac"),  # search, not match
        ("^[a-z]+$", "abc", "abc\n"),
        (r"^\p{Lu}", "Éa", "éa"),
        (r"^(?<year>\d{4})-", "2026-", "26-"),
        (r"^\/[^\/$]+$", "/a", "/$"),
        (r"[$]\$$", "$$", "$"),
        (r"^(?!foo)\w+$", "bar", "foobar"),
        (r"^(.)\1$", "aa", "ab"),
        (r"^[\w.-]+@[\w-]+\.\w{2,}$", "a.b@c-d.org", "a@b"),
    ],
)
def test_patterns_of_ecma_262_keep_their_meaning(pattern, fits, differs):
    schema = {"properties": {"a": {"type": "string", "pattern": pattern}}}
    assert problems(schema, {"a": fits}) == []
    assert len(problems(schema, {"a": differs})) == 1


def test_names_that_a_pattern_allows_are_no_additional_properties():
    schema = {"properties": {"a": {}}, "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}
    assert problems(schema, {"a": 1, "x-b": 2}) == []
    assert problems(schema, {"x-b": "z"}) == ["'z' is not of type 'integer'"]
    (other,) = problems(schema, {"y": 1, "x-b": 2})
    assert "'y'" in other and "x-b" not in other


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"a": {"pattern": "("}}}, "is not a 'regex'"),
        ({"patternProperties": {"^x": {}}, "unevaluatedProperties": False}, "Use additionalProperties"),
        (
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                "properties": {"a": {"minimum": 0, "exclusiveMinimum": True}},
            },
            "draft-04/schema.*convert it to draft 2020-12",
        ),
    ],
)
def test_schemas_that_cannot_be_checked_are_refused(schema, message):
    with pytest.raises(ConfigError, match=message):
        tool(schema)
