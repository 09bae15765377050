"""Values that other people give: of their code as the numbers of Python and as JSON, of their files as text."""

import math
from collections.abc import Iterator
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import yaml

from verl_agent.errors import ConfigError

LARGEST = 1e30
"""Largest size of a number of an environment; a batch holds rewards in float32, which ends near 3e38."""
NUMBER = f"Allowed: a finite number of at most {LARGEST:g}, of Python, NumPy or torch."
"""Values that `to_number` converts, for messages."""
MAX_DEPTH = 100
"""Most lists and dicts inside each other; JSON parsers and pickles end in a recursion error beyond some hundreds."""
_MAX_DIGITS = 4000
"""Most digits of a whole number; Python does not parse more than 4,300."""

ENCODING = "Save it as UTF-8, for example by: iconv -f LATIN1 -t UTF-8 OLD > NEW"
"""Remedy for a text file of another encoding."""
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""First bytes of a text file in UTF-16."""


def read_text(file: Path) -> str:
    """Return the text of a file that a person wrote, without a byte-order mark.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        remedy = ENCODING.replace("LATIN1", "UTF-16") if error.object.startswith(UTF_16) else ENCODING
        raise ConfigError(f"{file} is not UTF-8 (byte {error.start + 1}: {error.reason}). {remedy}.") from error
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise ConfigError(f"{file} cannot be read: {error}.") from error


class _OnceLoader(yaml.SafeLoader):
    """Loader that refuses a key that a mapping has twice; YAML's keeps the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                problem = f"the key {key.value!r} occurs twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add((key.tag, str(key.value)))
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read_plain_yaml(file: Path) -> Any:
    """Return the content of a YAML file in which `${` is text, unlike in the recipes that OmegaConf reads.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
        yaml.YAMLError: it is not YAML, or a mapping has a key twice.
    """
    return yaml.load(read_text(file), _OnceLoader)


def to_number(value: object) -> float | None:
    """Return a number as Python's `float`; None for everything else.

    A number is a real one of Python (a bool, a Decimal or a Fraction too), a scalar of NumPy, and an array or tensor
    with a single element. Complex and masked values, texts, times, NaN, and sizes above `LARGEST` are refused.
    """
    if type(value) is not float and not isinstance(value, Real | Decimal):
        value = _only_element(value)
    if not isinstance(value, Real | Decimal) or _is_time(value):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # times of NumPy, a signalling NaN, whole numbers beyond float
        return None
    return number if math.isfinite(number) and abs(number) <= LARGEST else None


def to_flag(value: object) -> bool | None:
    """Return True for a number (see `to_number`) that equals 1, False for one that equals 0, else None."""
    if isinstance(value, bool):
        return value
    number = to_number(value)
    return bool(number) if number in (0.0, 1.0) else None


def _only_element(value: object) -> object:
    """Return the element of an array or a scalar that has one, as its library converts it; None without one."""
    try:
        masked = getattr(value, "mask", False)
        if _is_time(value) or (masked and not callable(masked)):
            return None
        return value.item()  # type: ignore[attr-defined]
    except Exception:  # boundary: no scalar, several elements, a tensor without data: each library has its own error
        return None


def _is_time(value: object) -> bool:
    """Return True for a time or a duration of NumPy, which it converts to a number of nanoseconds."""
    return getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M")


def text_fault(value: object, may_be_empty: bool = False) -> str:
    """Return the change that makes a value a text that UTF-8 and every process keep; "" if it is one."""
    if type(value) is not str:
        return "Use str(...)."
    if not value and not may_be_empty:
        return "Give it a name."
    return next((remedy for _, _, remedy in _not_json(value, "", 0)), "")


def check_json(value: object, name: str) -> None:
    """Refuse a value that is no JSON object, or that JSON does not give back equal and of the same types.

    Args:
        name: name of the value in the message.

    Raises:
        ConfigError: a place in the value is not JSON; the message names it and the remedy.
    """
    for path, found, remedy in _not_json(value, name, 0):
        raise ConfigError(f"{path} is {found:.200}, which JSON does not keep. {remedy}")
    if type(value) is not dict:
        raise ConfigError(f"{name} is a {_name(value)}, which JSON does not keep as an object. Use a dict.")


def _not_json(value: Any, path: str, depth: int) -> Iterator[tuple[str, str, str]]:
    kind = type(value)
    if kind is str:
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            yield path, repr(value), "Remove the lone surrogate, which UTF-8 does not encode."
    elif kind is float:
        if not math.isfinite(value):
            yield path, repr(value), "Use a finite number, or None."
    elif kind is int:
        if value.bit_length() > _MAX_DIGITS * 3:
            yield path, f"a number of {value.bit_length():,} bits", "Use a text."
    elif kind is dict or kind is list:
        if depth == MAX_DEPTH:
            yield path, f"more than {MAX_DEPTH} levels", "Nest fewer lists and dicts."
            return
        if kind is dict:
            for key in value:
                if type(key) is not str:
                    yield path, f"the key {key!r} of type {_name(key)}", "Use a text as the key: JSON has no others."
                else:
                    yield from _not_json(key, f"{path}, key", depth + 1)
        for key, inner in value.items() if kind is dict else enumerate(value):
            yield from _not_json(inner, f"{path}[{key!r}]", depth + 1)
    elif value is not None and kind is not bool:
        yield path, f"{value!r} of type {_name(value)}", _remedy(value)


def _remedy(value: object) -> str:
    """Return the change that makes a value of a type that JSON does not have valid."""
    if isinstance(value, str):
        return "Use str(...)."
    if hasattr(value, "tolist") and getattr(value, "ndim", None) != 0:
        return "Use its tolist()."
    number = to_number(value)
    if number is not None:
        whole = number.is_integer() and not isinstance(value, float)
        dtype = str(getattr(value, "dtype", ""))  # such as "float32" of NumPy, and "torch.int64"
        kind = next((kind for kind in ("bool", "float", "int") if kind in dtype), "int" if whole else "float")
        return f"Use {kind}(...)."
    if hasattr(value, "isoformat"):
        return "Use its isoformat(), and parse it in reset()."
    if isinstance(value, bytes | bytearray):
        return "Use its hex() or base64, and decode it in reset()."
    if isinstance(value, set | frozenset):
        try:
            sorted(value)
        except Exception:  # boundary: values of several types, or an author's comparison
            return "Use list(...), in an order that every process repeats."
        return "Use sorted(...), a list."
    if isinstance(value, dict) or hasattr(value, "keys"):
        return "Use dict(...)."
    if hasattr(value, "__iter__") and not hasattr(value, "__fspath__"):
        return "Use list(...)."
    return "Use a text, a number, a bool, None, or lists and dicts of those."


def _name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
