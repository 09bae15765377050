"""Test lines of a metrics log that are damaged."""

import pytest

from verl_agent.trace.metrics_log import parse_step


@pytest.mark.parametrize(("digits", "name"), [("1" + "0" * 400, "far"), ("-1" + "0" * 400, "low")])
def test_an_integer_beyond_the_floats_is_not_finite(digits: str, name: str):
    step = parse_step(f'{{"step": 1, "data": {{"{name}": {digits}, "loss": 2}}}}')
    assert step is not None and step.values == {"loss": 2.0} and step.not_finite == (name,)


def test_a_line_with_a_number_of_thousands_of_digits_is_none():
    assert parse_step('{"step": 1, "data": {"loss": ' + "1" * 5000 + "}}") is None
