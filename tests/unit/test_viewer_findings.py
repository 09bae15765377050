"""Test that the findings of a run name why it learns nothing."""

import pytest

from tests.unit.test_viewer import step
from verl_agent.viewer.findings import find_problems

NONE = dict.fromkeys(("invalid_action", "no_action", "no_effect", "repeated_action", "loop"), 0.0)
NONE |= dict.fromkeys(("back_and_forth", "truncated", "gave_up", "wrote_observation"), 0.0)


def texts(*, uniform: float = 0.0, solved_turns: dict[int, int] | None = None, **values: object) -> list[str]:
    steps = [step(number, **values) for number in (1, 2)]
    return [finding.text for finding in find_problems(steps, {1: uniform, 2: uniform}, solved_turns or {3: 9})]


def test_a_run_that_learns_has_no_finding() -> None:
    assert texts(stops={"terminated": 0.6, "turn_limit": 0.4}) == []
    assert find_problems([], {}, {}) == []


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"behaviors": NONE | {"no_action": 0.95}}, "95% of the replies have no action that the parser accepts"),
        ({"reward": 0.0, "success": 0.0, "stops": {"terminated": 1.0}}, "its reward does not say so"),
        ({"reward": 0.0, "success": 0.0, "stops": {"turn_limit": 1.0}}, "The mean return is 0 at every one"),
        ({"stops": {"turn_limit": 0.9}, "max_turns": 2, "solved_turns": {2: 1, 5: 3}}, "too short: 75% of the solved"),
        ({"stops": {"turn_limit": 0.9}}, "The turn limit 6 ends 90% of the episodes"),
        ({"env_errors": 8}, "50% of the episodes end with an error of the environment"),
        ({"uniform": 0.9}, "All returns are equal in 90% of the groups"),
    ],
)
def test_a_cause_is_named(values: dict[str, object], sentence: str) -> None:
    assert any(sentence in text for text in texts(**values))  # type: ignore[arg-type]


def test_a_finding_filters_the_episodes_that_show_it() -> None:
    (finding,) = find_problems([step(number, behaviors=NONE | {"loop": 0.5}) for number in (4, 5)], {}, {})
    assert finding.parameters == {"purpose": "train", "step": "4..5", "loop": "1.."}
