"""Test the colors and numbers of tokens."""

import math
from urllib.parse import urlencode

import pytest
from starlette.requests import Request

from verl_agent.trace.token_files import TokenRow
from verl_agent.viewer.links import changed_url
from verl_agent.viewer.token_views import VIEWS, alternatives, available, color, hover_values, means_by_turn, values_of

VIEW = {view.name: view for view in VIEWS}


def row(**columns: list) -> TokenRow:
    """A prompt of one token, two replies of two tokens with an observation between; the last token is rejected."""
    return TokenRow(
        "g", 0, 0, 1, 1, [1, 2, 3, 4, 5, 6], [False, True, True, False, True, False], [-1, 0, 0, -1, 1, 1], columns
    )


def test_another_color_keeps_the_place_in_the_url() -> None:
    query = urlencode({"color": "entropy", "segment": "1", "turn": "3"}).encode()
    request = Request({"type": "http", "path": "/run/a b/tokens", "query_string": query, "headers": []})
    assert changed_url(request, color="mask") == "/run/a%20b/tokens?color=mask&segment=1&turn=3"
    assert changed_url(request, color="", turn=None) == "/run/a%20b/tokens?segment=1"


def test_the_mask_tells_trained_written_and_other_tokens_apart() -> None:
    assert color(row(), VIEW["mask"]).levels == [None, 1, 1, None, 1, -1]


def test_signed_quantities_have_two_colors_and_a_common_scale() -> None:
    colored = color(row(advantages=[2.0, 1.0, None, -4.0, 0.0]), VIEW["advantages"])
    assert colored.bound == 4
    assert colored.levels == [None, 0.5, 0.25, None, -1, 0]


def test_unlikely_tokens_are_the_strongest() -> None:
    colored = color(row(inference_logprobs=[-0.1, -2.0, None, 0.0, -1.0]), VIEW["inference_logprobs"])
    assert colored.levels == [None, 0.05, 1, None, 0, 0.5]


def test_observations_have_no_color_even_where_they_have_a_value() -> None:
    assert color(row(entropy=[1.0, 1.0, 7.0, 1.0, 1.0]), VIEW["entropy"]).levels == [None, 1, 1, None, 1, 1]


def test_values_that_are_not_numbers_stand_out() -> None:
    assert color(row(entropy=[math.nan, 0.5, 0.0, 1.0, math.inf]), VIEW["entropy"]).levels == [None, 1, 0.5, None, 1, 1]


def test_the_gap_is_that_of_trainer_and_engine() -> None:
    both = row(inference_logprobs=[-1.0, -2.0, None, -1.0, -1.0], trainer_logprobs=[-1.5, -1.0, -9.0, -1.0, -1.0])
    assert values_of(both, "gap") == [None, -0.5, 1.0, None, 0.0, 0.0]
    assert [view.name for view in available(both)] == ["mask", "inference_logprobs", "trainer_logprobs", "gap"]


def test_weights_are_colored_by_their_distance_from_1() -> None:
    colored = color(row(rollout_is_weights=[1.0, 2.0, None, 0.5, 1.0]), VIEW["rollout_is_weights"])
    assert colored.levels == [None, 0, 1, None, -0.5, 0]


def test_turns_are_counted_and_averaged() -> None:
    means = means_by_turn(row(entropy=[1.0, 3.0, 9.0, 2.0, 2.0], advantages=[None, None, None, 1 / 3, 0.0]))
    assert means == [
        {"turn": 1, "tokens": 2, "in the loss": 2, "advantage": None, "entropy": 2.0},
        {"turn": 2, "tokens": 2, "in the loss": 1, "advantage": 0.1667, "entropy": 2.0},
    ]


def test_hovering_shows_each_recorded_value() -> None:
    lines = dict(hover_values(row(advantages=[0.5, 0.5, None, 1 / 3, 0.0])))
    assert lines["turn"] == [None, "1", "1", None, "2", "2"]
    assert lines["in the loss"][-1] == "False" and lines["in the loss"][0] is None
    assert lines["advantage"] == [None, "0.5", "0.5", None, "0.3333", "0"]


def test_alternatives_are_probabilities() -> None:
    top = row(top_logprobs=[[0.0, -math.inf], None, None, None, None])
    assert alternatives(top) == [], "none were recorded"
    top.top_texts = [None, ["a", "b"], None, None, None, None]  # type: ignore[list-item]
    assert alternatives(top)[1] == [("a", "100.0%"), ("b", "0.0%")]
    assert alternatives(top)[0] is None


@pytest.mark.parametrize("values", [[0.0] * 5, [None] * 5])
def test_a_quantity_without_differences_has_a_scale(values: list) -> None:
    assert color(row(advantages=values), VIEW["advantages"]).bound == 1
