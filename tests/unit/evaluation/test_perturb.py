"""Test perturbed environments, their settings, and the ratio to the clean evaluation."""

import asyncio
import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.evaluated_games import evaluated, recipe
from verl_agent.envs.registry import make_env
from verl_agent.errors import ConfigError
from verl_agent.evaluation.job import prepare_evaluation
from verl_agent.evaluation.perturb import FAULT, SENTENCES, PerturbedSession, PerturbSettings, new_names, renamed
from verl_agent.evaluation.run import report_results
from verl_agent.evaluation.settings import EvaluationSettings
from verl_agent.results.leaderboard import make_boards
from verl_agent.results.significance import paired_ratio
from verl_agent.sections import section
from verl_agent.trace.record_files import read_records
from verl_agent.types import Message, StepResult


def session(**settings) -> PerturbedSession:
    return PerturbedSession(make_env("textcraft"), PerturbSettings(**settings), seed=1)


def demonstrated(perturbed: PerturbedSession, names: bool = False) -> tuple[list[Message], list[StepResult]]:
    """Play the oracle of TextCraft's first test goal; with `names`, in the words of the renamed task."""
    env = make_env("textcraft")
    item = env.tasks("test")[0]
    actions = [demo.action for demo in env.demonstration(item)]

    async def play() -> tuple[list[Message], list[StepResult]]:
        prompt = await perturbed.reset(item)
        given = perturbed._names if names else {}
        return prompt, [await perturbed.step(renamed(action, given)) for action in actions]

    return asyncio.run(play())


CLEAN = demonstrated(session())


def test_the_defaults_change_nothing():
    env, clean = make_env("textcraft"), CLEAN
    assert not PerturbSettings().active
    assert clean[0] == asyncio.run(env.reset(env.tasks("test")[0])) and clean[1][-1].reward == 1.0


def test_a_renamed_task_is_solved_in_its_new_names_and_hides_the_old_ones():
    prompt, steps = demonstrated(session(rename=True), names=True)
    goal = make_env("textcraft").tasks("test")[0].data["goal"].partition(":")[2].split("_")
    assert steps[-1].reward == 1.0
    assert goal[-1] in CLEAN[0][-1]["content"] and goal[-1] not in prompt[-1]["content"]
    assert prompt[0] == CLEAN[0][0]
    assert "craft" in prompt[-1]["content"].lower(), "words of the rules keep their names"


def test_renaming_is_consistent_reversible_and_avoids_known_words():
    names = new_names("Oak planks and oak logs", "Take logs.", "1")
    assert set(names) == {"planks"} and names["planks"] not in ("logs", "planks")
    text = renamed("Planks, planks; oak", names)
    assert text.startswith(names["planks"].capitalize()) and text.endswith("oak")
    assert renamed(text, {new: old for old, new in names.items()}) == "Planks, planks; oak"


def test_failing_actions_have_no_effect_and_are_counted():
    _, steps = demonstrated(session(fault_rate=1.0))
    assert {step.observation for step in steps} == {FAULT}
    assert all(step.info == {"perturbed_fault": 1.0} and step.reward == 0 for step in steps)


def test_noise_swaps_letters_in_its_share_of_words_and_repeats_for_a_seed():
    (prompt, _), (again, _) = (demonstrated(session(observation_noise=0.5)) for _ in range(2))
    words = list(zip(CLEAN[0][-1]["content"].split(), prompt[-1]["content"].split(), strict=True))
    changed = [(old, new) for old, new in words if old != new]
    assert again == prompt and 0.2 < len(changed) / len(words) < 0.6
    assert all(sorted(old) == sorted(new) for old, new in changed)


def test_distractors_follow_each_observation():
    prompt, steps = demonstrated(session(distractors=2))
    for text in (prompt[-1]["content"], *(step.observation for step in steps)):
        assert set(text.splitlines()[-2:]) <= set(SENTENCES)
    assert steps[-1].reward == 1.0


@pytest.mark.parametrize("variant", ["lowercase", "one_line", "reordered"])
def test_a_variant_changes_the_form_of_the_rules_alone(variant):
    prompt, _ = demonstrated(session(prompt_variant=variant))
    original, changed = CLEAN[0][0]["content"], prompt[0]["content"]
    assert changed != original and sorted(changed.lower().split()) == sorted(original.lower().split())
    assert prompt[1:] == CLEAN[0][1:]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fault_rate": 1.5}, r"evaluation\.perturb\.fault_rate=1\.5 is not allowed\. Allowed: a number from 0 to 1"),
        ({"prompt_variant": "loud"}, r"Allowed: lowercase, one_line, reordered or null"),
        ({"noise": 0.1}, r"evaluation\.perturb\.noise is not a setting"),
    ],
)
def test_other_settings_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        section("evaluation", EvaluationSettings, {"perturb": values})


def test_a_perturbed_evaluation_reports_its_ratio_and_has_a_board_of_its_own(tmp_path: Path):
    clean = evaluated(tmp_path / "clean", "expensive")
    perturb = {"fault_rate": 0.5}
    noisy = evaluated(tmp_path / "noisy", "expensive", compare_with=str(clean), perturb=perturb)
    report = json.loads((noisy / "evaluation.json").read_text())
    rates = [
        json.loads((one / "evaluation.json").read_text())["results"][-1]["success"]["mean"] for one in (noisy, clean)
    ]
    assert 0 < rates[0] < rates[1] and report["success_ratio"]["mean"] == pytest.approx(rates[0] / rates[1])
    boards = make_boards([tmp_path])
    assert sorted(str(board.conditions["perturb"]) for board in boards) == [str(perturb), "{}"]


def test_results_without_a_valid_episode_of_a_task_of_the_baseline_are_reported_without_a_comparison(tmp_path: Path):
    clean = evaluated(tmp_path / "clean", "expensive", max_tasks=2)
    records = [record | {"stop": "env_error"} for record in read_records(clean / "episodes.jsonl")]
    evaluation = prepare_evaluation(recipe(tmp_path / "new", turns=4, max_tasks=2, compare_with=str(clean)))
    (tmp_path / "new/episodes.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    report_results(evaluation, Console(file=(shown := StringIO()), width=400))
    report = json.loads((tmp_path / "new/evaluation.json").read_text())
    assert (report["comparison"], report["played"]) == ([], 2)
    assert f"not compared with {clean}: the two evaluations share no task with a valid episode" in shown.getvalue()


def test_a_baseline_that_solves_nothing_has_no_ratio():
    assert paired_ratio({"a": [1.0], "b": [0.0]}, {"a": [0.0], "b": [0.0]}) is None
