"""Test the numbers of other types that become those of Python, and the data of tasks that JSON does not keep."""

import json
from collections import OrderedDict, namedtuple
from datetime import date
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from verl_agent.errors import ConfigError
from verl_agent.types import TaskItem
from verl_agent.values import to_flag, to_number

CIRCLE: list[object] = []
CIRCLE.append(CIRCLE)
DEEP: object = 1
for _ in range(2_000):
    DEEP = [DEEP]

NO_NUMBERS = [
    *(None, "1", b"1", 1j, [1.0], {}, object(), float("nan"), float("inf"), 1e31, 10**400, Fraction(10**400)),
    *(Decimal("NaN"), Decimal("sNaN"), np.float32("inf"), np.str_("1"), np.array("1"), np.ones(2), np.ones(0)),
    *(np.complex64(1), np.timedelta64(1, "ns"), np.timedelta64(1, "s"), np.datetime64(1, "ns"), np.datetime64("NaT")),
    *(np.ma.masked, np.ma.array([1.0], mask=[True]), np.array(None), np.array([1.0, 2.0])[:0]),
]
"""Values that stand for no finite real number of float32."""


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_a_value_that_is_no_finite_number_is_not_converted(value):
    assert to_number(value) is None
    assert to_flag(value) is None


def test_a_number_keeps_its_value():
    third = np.float32(1) / np.float32(3)
    found = [to_number(value) for value in (Fraction(1, 4), Decimal("0.1"), third, np.longdouble(0.5), np.uint8(255))]
    assert found == [0.25, 0.1, float(third), 0.5, 255.0]
    assert [to_flag(value) for value in (0, np.int8(1), 0.5, 2, np.float64(0))] == [False, True, None, None, False]


class Color(IntEnum):
    RED = 1


KEPT = {
    "texts": {"a": "ä\u2028\U0001f600", "": ""},
    "numbers": {"a": [0, -1, 2**70, 0.1, -0.0, 1e300, 10**3600]},
    "the others": {"a": [True, False, None, [], {}]},
}
"""Data that every border keeps."""
REFUSED = {
    "an int of NumPy": ({"n": np.int64(4)}, "data['n'] is np.int64(4) of type numpy.int64", "int(...)"),
    "a float of NumPy": ({"n": np.float64(0.5)}, "data['n']", "float(...)"),
    "a bool of NumPy": ({"n": np.bool_(True)}, "data['n']", "bool(...)"),
    "a whole float of NumPy": ({"n": np.float32(1)}, "data['n'] is np.float32(1.0)", "Use float(...)."),
    "an array": ({"a": np.arange(2)}, "data['a'] is array([0, 1])", "Use its tolist()."),
    "an array of one": ({"a": np.ones(1)}, "data['a'] is array([1.])", "Use its tolist()."),
    "an array without sides": ({"a": np.array(2)}, "data['a'] is array(2)", "Use int(...)."),
    "a set of several types": ({"a": {1, "b"}}, "of type set", "Use list(...)"),
    "a tuple": ({"a": [{"at": (1, 2)}]}, "data['a'][0]['at'] is (1, 2) of type tuple", "list(...)"),
    "a named tuple": ({"a": namedtuple("P", "x")(1)}, "data['a'] is P(x=1)", "list(...)"),
    "a set": ({"a": {1}}, "data['a'] is {1} of type set", "sorted(...)"),
    "a whole number as key": ({3: "x"}, "data is the key 3 of type int", "Use a text as the key"),
    "a key inside": ({"a": [{None: 1}]}, "data['a'][0] is the key None", "Use a text as the key"),
    "a date": ({"day": date(2024, 5, 1)}, "data['day'] is datetime.date(2024, 5, 1)", "isoformat()"),
    "NaN": ({"x": float("nan")}, "data['x'] is nan", "Use a finite number, or None."),
    "infinity": ({"x": [float("-inf")]}, "data['x'][0] is -inf", "finite"),
    "a path": ({"p": Path("/a")}, "data['p'] is PosixPath('/a') of type pathlib", "Use a text"),
    "bytes": ({"b": b"x"}, "data['b'] is b'x' of type bytes", "base64"),
    "a lone surrogate": ({"t": "a\ud800"}, "data['t'] is 'a\\ud800'", "surrogate"),
    "a surrogate in a key": ({"\udfff": 1}, "data, key is '\\udfff'", "surrogate"),
    "a member of an enum": ({"c": Color.RED}, "data['c'] is <Color.RED: 1>", "int(...)"),
    "a dict of another type": ({"d": OrderedDict(a=1)}, "data['d'] is OrderedDict", "dict(...)"),
    "a view of a dict": (MappingProxyType({"a": 1}), "data is mappingproxy", "dict(...)"),
    "a number of too many digits": ({"n": 10**5000}, "data['n'] is a number of", "Use a text."),
    "a circle": ({"a": CIRCLE}, "more than 100 levels", "fewer"),
    "many levels": ({"a": DEEP}, "more than 100 levels", "fewer"),
    "no dict": ([1], "data is a list", "dict"),
}


@pytest.mark.parametrize("kind", KEPT)
def test_data_that_json_keeps_is_allowed(kind):
    item = TaskItem("numbers", "1", KEPT[kind])
    assert json.loads(json.dumps(item.data)) == item.data


@pytest.mark.parametrize("kind", REFUSED)
def test_data_that_json_does_not_keep_is_refused_with_its_key_and_a_remedy(kind):
    data, place, remedy = REFUSED[kind]
    with pytest.raises(ConfigError) as refused:
        TaskItem("numbers", "7", data)
    text = str(refused.value)
    assert text.startswith("TaskItem '7' of env 'numbers': data")
    assert place in text
    assert remedy in text.partition("JSON does not keep")[2]
