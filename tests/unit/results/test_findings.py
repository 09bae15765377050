"""Test that the findings of a run name why it learns nothing."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.episodes import talk
from tests.support.scripted_runs import broken_parser, history_of, no_reward, short_horizon
from tests.support.viewing import step
from verl_agent.commands.reference import page
from verl_agent.results import findings, findings_trends
from verl_agent.results.findings import find_problems
from verl_agent.results.findings_history import condense
from verl_agent.results.findings_steps import RunHistory
from verl_agent.trace.metrics_log import MetricsLog
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records
from verl_agent.viewer.diagnosis import find_in_run
from verl_agent.viewer.state import ViewerState

NONE = dict.fromkeys(("invalid_action", "no_action", "no_effect", "repeated_action", "loop"), 0.0)
NONE |= dict.fromkeys(("back_and_forth", "truncated", "gave_up", "wrote_observation"), 0.0)


def texts(*, uniform: float = 0.0, needed_turns: dict[int, int] | None = None, **values: object) -> list[str]:
    steps = [step(number, **values) for number in (1, 2)]
    return [
        finding.text
        for finding in find_problems(
            RunHistory(steps, dict.fromkeys((1, 2), (round(10 * uniform), 10)), needed_turns or {3: 9})
        )
    ]


def test_a_run_that_learns_has_no_finding() -> None:
    assert texts(stops={"terminated": 0.6, "turn_limit": 0.4}) == []
    assert find_problems(RunHistory([])) == []


def test_what_follows_from_a_cause_brings_no_advice_of_its_own() -> None:
    silent = texts(behaviors=NONE | {"no_action": 0.9}, stops={"turn_limit": 1.0}, uniform=1.0)
    assert not any("horizon.max_turns" in text or "samples" in text for text in silent)
    assert any("more samples" in text for text in texts(uniform=1.0))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"behaviors": NONE | {"no_action": 0.95}}, "95% of the replies have no action that the parser accepts"),
        ({"reward": 0.0, "success": 0.0, "stops": {"terminated": 1.0}}, "its reward does not say so"),
        ({"reward": 0.0, "success": 0.0, "stops": {"turn_limit": 1.0}}, "The mean return is 0 at every one"),
        (
            {"stops": {"turn_limit": 0.9}, "max_turns": 2, "needed_turns": {2: 1, 5: 3}},
            "too short: 75% of the tasks need more turns",
        ),
        ({"stops": {"turn_limit": 0.9}}, "The turn limit 6 ends 90% of the episodes"),
        ({"env_errors": 8}, "50% of the episodes end with an error of the environment"),
        ({"stops": {"action_error": 0.4}}, "40% of the episodes end at an action with which the environment fails"),
        ({"uniform": 0.9}, "All returns are equal in 90% of the groups"),
    ],
)
def test_a_cause_is_named(values: dict[str, object], sentence: str) -> None:
    assert any(sentence in text for text in texts(**values))  # type: ignore[arg-type]


def test_the_finding_on_a_growing_horizon_is_about_its_last_limit() -> None:
    grown = [step(number, max_turns=4, stops={"turn_limit": 0.84}) for number in (1, 2)]
    grown += [step(number, max_turns=6, stops={"turn_limit": 0.68}) for number in (3, 4)]
    (finding,) = find_problems(RunHistory(grown))
    assert finding.text.startswith("The turn limit 6 ends 68% of the episodes")
    assert finding.parameters["step"] == "3..4"


@pytest.mark.parametrize(
    ("episodes", "late", "improves"),
    [(8, 0.5, False), (8, 1.0, True), (800, 0.5, True), (800, 0.26, False)],
)
def test_a_change_within_the_noise_of_few_episodes_is_no_improvement(
    episodes: int, late: float, improves: bool
) -> None:
    """Two of eight episodes, then four of eight: Fisher's exact test has p = 0.6."""
    success = [0.25, 0.25, 0.25, late]
    steps = [step(at, episodes=episodes, success=one, reward=one) for at, one in enumerate(success, start=1)]
    history = RunHistory(steps)
    assert history.improves(4) == improves
    validated = [step(at, purpose="validation", episodes=episodes, success=one) for at, one in enumerate(success)]
    assert RunHistory([*validated, *[step(at) for at in range(1, 5)]]).improves(2) == improves


def test_two_returns_of_unknown_error_are_no_improvement() -> None:
    history = RunHistory([step(at, success=0.0, reward=reward) for at, reward in ((1, 0.1), (2, 0.2))])
    assert not history.improves(2)
    rising = RunHistory([step(at, success=0.0, reward=at / 10 + at % 2 / 20) for at in range(1, 13)])
    assert rising.improves(6)


def test_the_share_of_equal_groups_is_that_of_the_page_to_which_it_leads() -> None:
    (finding,) = find_problems(RunHistory([step(1), step(2)], {1: (1, 1), 2: (5, 9)}))
    assert finding.text.startswith("All returns are equal in 60% of the groups")
    assert (finding.groups, finding.parameters) == (True, {"purpose": "train", "step": "1..2"})


def test_a_finding_filters_the_episodes_that_show_it() -> None:
    (finding,) = find_problems(RunHistory([step(number, behaviors=NONE | {"loop": 0.5}) for number in (4, 5)]))
    assert finding.parameters == {"purpose": "train", "step": "4..5", "loop": "1.."}


def test_replies_without_an_action_are_not_reported_as_invalid_too() -> None:
    found = texts(behaviors=NONE | {"no_action": 0.9, "invalid_action": 0.95})
    assert len(found) == 1
    assert "no action" in found[0]


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (broken_parser, "100% of the replies have no action that the parser accepts"),
        (no_reward, "its reward does not say so"),
        (short_horizon, "The turn limit 1 is too short"),
    ],
)
def test_the_first_finding_on_a_played_run_is_its_cause(
    tmp_path: Path, write: Callable[[Path, int], Path], sentence: str
) -> None:
    run = write(tmp_path / "run", 1)
    (opened,) = ViewerState([run]).opened.values()
    opened.index.update()
    found = find_in_run(opened)
    assert sentence in found[0].text
    assert find_problems(history_of(read_records(run))) == found


@pytest.mark.parametrize(("means", "told"), [({}, True), ({2: 6.0, 3: 6.0}, True), ({2: 4.5, 3: 6.0}, False)])
def test_a_larger_limit_is_a_change_unless_limits_differ_within_a_step(means: dict[int, float], told: bool) -> None:
    steps = [step(at, max_turns=limit) for at, limit in ((1, 4), (2, 6), (3, 6))]
    log = MetricsLog({at: {"episode/horizon_mean": mean} for at, mean in means.items()})
    assert ("the turn limit went from 4 to 6 at step 2" in RunHistory(steps, log=log).changes(2)) == told


def test_a_lower_limit_that_a_schedule_chose_is_not_called_too_short() -> None:
    """All tasks need 6 turns, and the highest limit is 8; the last step played the lower one."""
    steps = [step(1, max_turns=8), step(2, max_turns=4)]
    texts = [found.text for found in find_problems(RunHistory(steps, needed_turns={6: 10}))]
    assert not any("is too short" in text for text in texts)
    low = find_problems(RunHistory(steps[1:], needed_turns={6: 10}))
    assert any("The turn limit 4 is too short: 100%" in found.text for found in low)


def test_findings_name_settings_that_exist() -> None:
    source = "".join(Path(one.__file__).read_text() for one in (findings, findings_trends))
    named = set(re.findall(r"\b(?:episode|horizon)\.[a-z_]+", source))
    assert named and [key for key in named if f"`{key}`" not in page()] == []


@pytest.mark.parametrize(("given", "needs"), [(0, 2), (3, None)])
def test_a_solved_episode_tells_the_turns_of_its_task_only_from_the_prompt_on(given: int, needs: int | None) -> None:
    record: EpisodeRecord = {**talk("a b", reward=1.0), "given_turns": given}
    assert record["success"] and condense(record).needs == needs
