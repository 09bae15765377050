"""Options of an environment are checked by the signature of its constructor."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import pytest
from pydantic import Field

from verl_agent.envs.options import AtLeastOne, Positive, checked_options
from verl_agent.errors import ConfigError


class Adapter:
    @checked_options
    def __init__(
        self,
        name: str,
        mode: Literal["easy", "hard"] = "easy",
        turns: Annotated[int, Field(ge=1, le=10)] = 5,
        rate: Positive = 1.0,
        sizes: Sequence[AtLeastOne] = (1,),
        more: Mapping[str, float] | None = None,
    ) -> None:
        self.given = (name, mode, turns, rate, sizes, more)


def test_allowed_options_reach_the_constructor_unchanged():
    sizes = [2, 3]
    assert Adapter("a", turns=10, rate=2, sizes=sizes, more={"x": 1}).given == ("a", "easy", 10, 2, sizes, {"x": 1})
    assert Adapter(name="a").given == ("a", "easy", 5, 1.0, (1,), None)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"name": 3}, r"env\.options\.name=3 is not allowed\. Allowed: a text\."),
        ({"mode": "eazy"}, r"env\.options\.mode='eazy' is not allowed\. Allowed: easy, hard\. Did you mean 'easy'"),
        ({"turns": 11}, r"env\.options\.turns=11 is not allowed\. Allowed: a whole number from 1 to 10\."),
        ({"turns": "5"}, r"env\.options\.turns='5' is not allowed"),
        ({"turns": True}, r"env\.options\.turns=True is not allowed"),
        ({"rate": 0}, r"env\.options\.rate=0 is not allowed\. Allowed: a number > 0\."),
        ({"sizes": [1, 0]}, r"env\.options\.sizes\[1\]=0 is not allowed\. Allowed: a whole number >= 1\."),
        ({"more": {"x": "1"}}, r"env\.options\.more\.x='1' is not allowed\. Allowed: a number\."),
    ],
)
def test_an_option_that_is_not_allowed_is_named(option, message):
    with pytest.raises(ConfigError, match=message):
        Adapter(**{"name": "a", **option})
