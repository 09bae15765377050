"""Test suites: selection of evaluations, skipping of missing needs, resuming, and the report."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests import ROOT
from tests.support.evaluated_games import evaluated
from verl_agent.commands.cli import app
from verl_agent.errors import ConfigError
from verl_agent.evaluation.suite.report import SuiteReport, with_earlier
from verl_agent.evaluation.suite.run import SuiteOutcome, missing_need, models_of, play_suite, plays_model
from verl_agent.evaluation.suite.settings import Suite, compose_entry, read_suite
from verl_agent.platform.detect import use_cpu_device
from verl_agent.results.folder import REPORT, SETTINGS

RECIPE = f"{ROOT}/recipes/guess_number/eval.yaml"
CONTENT = f"""
evaluations:
  small:
    recipe: {RECIPE}
    categories: [1 to 7, 1 to 10]
    overrides: [evaluation.tasks=small_test, env.hosts.where=inline]
  absent:
    recipe: {RECIPE}
    categories: [other]
    overrides: ["evaluation.tasks=${{oc.env:NO_SUCH_VARIABLE}}"]
    needs: the variable NO_SUCH_VARIABLE
  stand_in:
    recipe: {RECIPE}
    categories: [1 to 7]
    overrides: [evaluation.tasks=small_test, evaluation.max_tasks_per_category=2, env.hosts.where=inline]
    needs: nothing that is missing
    substitute: true
"""


def suite(folder: Path, *overrides: str, only: tuple[str, ...] = (), content: str = CONTENT) -> Suite:
    file = folder / "tiny.yaml"
    file.write_text(content)
    return read_suite(file, overrides, only)


def test_the_27_tasks_are_listed_with_the_numbers_of_items_of_the_paper():
    paper = read_suite(ROOT / "recipes/paper27.yaml", ["model.path=oracle"])
    listed = {name: entry for name, entry in paper.entries.items() if not entry.substitute}
    assert sum(len(entry.categories) for entry in listed.values()) == 27
    needing = {name for name, entry in listed.items() if entry.needs}
    assert needing == {"webarena", "nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"}
    turns = {name: compose_entry(paper, name).run.horizon.eval_max_turns for name in listed if name not in needing}
    assert turns == {"textcraft": 30, "babyai": 20, "scienceworld": 30}


def test_an_override_with_the_name_of_an_evaluation_changes_only_that_one(tmp_path):
    chosen = suite(tmp_path, "model.path=oracle", "small:horizon.eval_max_turns=3")
    turns = {name: compose_entry(chosen, name).run.horizon.eval_max_turns for name in ("small", "stand_in")}
    assert turns == {"small": 3, "stand_in": 10}


def test_a_suite_composes_for_a_model_behind_an_api(tmp_path):
    chosen = suite(tmp_path, "model.api.kind=openai", "model.api.name=tiny", "model.api.base_url=http://127.0.0.1:9/v1")
    assert compose_entry(chosen, "small").model == "openai:tiny"


def test_a_suite_skips_missing_needs_by_name(tmp_path):
    """tests/long/test_suite.py plays evaluations, each in a process of its own."""
    chosen, shown = suite(tmp_path, "model.path=oracle", only=("absent",)), StringIO()
    (skipped,) = play_suite(chosen, models_of(chosen, []), tmp_path / "out", Console(file=shown))
    assert (skipped.status, skipped.folder) == ("skipped", tmp_path / "out/oracle/absent")
    assert skipped.reason.startswith("needs the variable NO_SUCH_VARIABLE. the config does not resolve: ")
    assert "absent is skipped: needs the variable" in shown.getvalue()
    files = SuiteReport(chosen, [skipped]).write(tmp_path / "out")
    (row,) = json.loads(files[0].read_text())["rows"]
    assert (row["category"], row["status"], row["result"]) == ("other", "skipped", None)
    assert "| absent | other | skipped |" in files[1].read_text()


def test_a_suite_plays_below_a_folder_with_special_characters(tmp_path):
    chosen, into = suite(tmp_path, "evaluation.max_tasks=1", only=("small",)), tmp_path / "Größe (1), a=b"
    (played,) = play_suite(chosen, models_of(chosen, ["oracle"]), into, Console(file=StringIO()))
    assert (played.status, played.folder) == ("played", into / "oracle/small")


def test_an_evaluation_that_ends_with_an_error_has_no_results_of_another_model_in_its_folder(tmp_path):
    (other := tmp_path / "b/model").mkdir(parents=True)
    (other / "config.json").write_text("{}")
    (other / "model.safetensors").touch()
    evaluated(tmp_path / "out/model/small", "oracle")
    evaluated(tmp_path / "out/oracle/small", "oracle")
    chosen = suite(tmp_path, "horizon.eval_max_turns=2", only=("small",))
    models = models_of(chosen, [str(other), "oracle"])
    failed, refused = play_suite(chosen, models, tmp_path / "out", Console(file=StringIO()))
    assert (failed.status, refused.status) == ("failed", "partial")
    assert failed.reason.endswith("holds results of another model or of other weights")


def test_a_need_is_missing_if_the_first_task_does_not_start(tmp_path):
    config = compose_entry(suite(tmp_path, "model.path=oracle"), "stand_in")
    assert missing_need(config) is None
    config = compose_entry(suite(tmp_path, "model.path=oracle", "evaluation.tasks=nowhere"), "stand_in")
    assert "has no split 'nowhere'" in str(missing_need(config))


def outcomes(folder: Path) -> list[SuiteOutcome]:
    """Evaluate two policies on GuessNumber, and stand in for its evaluation by fewer tasks."""
    found = []
    for model in ("oracle", "cheap"):
        for name, limits in (("small", {}), ("stand_in", {"max_tasks_per_category": 2})):
            at = evaluated(folder / model / name, model, **limits)
            found.append(SuiteOutcome(model, name, "guess_number", at, "played"))
        found.append(SuiteOutcome(model, "absent", "", folder / "none", "skipped", "needs a variable"))
    return found


def test_the_report_means_over_categories_and_keeps_substitutes_apart(tmp_path):
    report = SuiteReport(suite(tmp_path, "model.path=x"), outcomes(tmp_path))
    oracle, cheap = report.models
    assert (oracle.categories, oracle.measured, oracle.mean.mean) == (3, 2, 1.0)
    assert cheap.mean.mean == pytest.approx((1 / 7 + 1 / 10) / 2)
    assert set(cheap.by_evaluation) == {"small", "stand_in"}
    text = report.markdown()
    assert "| evaluation | category | oracle | cheap |" in text
    assert "| small | 1 to 7 | 1.000 [0.646, 1.000] (7) | 0.143 [0.026, 0.513] (7) |" in text
    assert "|  | measured | 2 of 3 categories | 2 of 3 categories |" in text
    assert text.index("## Substitutes") < text.index("| stand_in | 1 to 7 |") < text.index("* absent, skipped: needs")
    assert "| model | trained on | small | stand_in |" in text
    assert "(2\\*)" in text and "\\* fewer than 5 tasks" in text


@pytest.mark.parametrize(
    ("overrides", "only", "content", "message"),
    [
        (["nowhere:env.retries=1"], (), CONTENT, r"'nowhere' is not an evaluation\. Known: absent, small"),
        (["small:evaluation.output_dir=x"], (), CONTENT, r"a folder of its own\. Name theirs with --into"),
        ([], ("smal",), CONTENT, r"--only 'smal' is not an evaluation of .*Did you mean 'small'"),
        ([], (), "horizon: {}", r"is no suite: it must hold the section evaluations and nothing else"),
        ([], (), CONTENT.replace("categories: [other]", ""), r"evaluations\.absent\.categories is missing"),
        ([], (), CONTENT.replace("eval.yaml", "no.yaml"), r"recipe='.*no\.yaml' does not exist"),
    ],
)
def test_invalid_suites_raise_config_error(tmp_path, overrides, only, content, message):
    with pytest.raises(ConfigError, match=message):
        suite(tmp_path, *overrides, only=only, content=content)


def test_models_are_named_once_and_have_different_names(tmp_path):
    named, unnamed = suite(tmp_path, "model.path=oracle"), suite(tmp_path)
    assert models_of(unnamed, ["runs/a", "oracle"]) == {
        "a": ["model.path='runs/a'"],
        "oracle": ["model.path='oracle'"],
    }
    assert models_of(named, []) == {"oracle": []}
    for chosen, models in ((named, ["random"]), (unnamed, [])):
        with pytest.raises(ConfigError, match="name the models either with --model"):
            models_of(chosen, models)
    with pytest.raises(ConfigError, match="two of the models have the same name: x/a, y/a"):
        models_of(unnamed, ["x/a", "y/a"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "absent:horizon.eval_max_turn=3",
            "^absent: horizon.eval_max_turn is not a setting of this recipe. Did you mean 'eval_max_turns'",
        ),
        ("absent:evaluation.samples=many", "^absent: evaluation.samples='many' is not allowed"),
    ],
)
def test_a_wrong_setting_of_one_evaluation_is_refused_before_any_is_played(tmp_path, override, message):
    content = CONTENT.replace('["evaluation.tasks=${oc.env:NO_SUCH_VARIABLE}"]', "[evaluation.tasks=small_test]")
    chosen = suite(tmp_path, "model.path=oracle", override, only=("small", "absent"), content=content)
    shown = StringIO()
    with pytest.raises(ConfigError, match=message):
        play_suite(chosen, models_of(chosen, []), tmp_path / "out", Console(file=shown))
    assert shown.getvalue() == "" and not (tmp_path / "out").exists()


def test_a_suite_with_a_wrong_setting_leaves_the_report_of_an_earlier_run_alone(tmp_path):
    chosen = suite(tmp_path, "model.path=oracle", only=("absent",))
    written = SuiteReport(chosen, outcomes(tmp_path / "out")[2:3]).write(tmp_path / "out")
    before = [path.read_text() for path in written]
    command = ["suite", str(chosen.file), "--model", "oracle", "--into", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*command, "evaluation.max_task=1"])
    assert done.exit_code == 2 and "Did you mean 'max_tasks'" in " ".join(done.output.split())
    assert [path.read_text() for path in written] == before


def test_the_report_keeps_evaluations_and_models_that_this_run_did_not_play(tmp_path):
    whole = suite(tmp_path, "model.path=x")
    found = outcomes(tmp_path)
    SuiteReport(whole, found).write(tmp_path)
    narrow = suite(tmp_path, "model.path=oracle", only=("small",))
    covered = with_earlier(narrow, found[:1], tmp_path)
    assert [(one.evaluation, one.model, one.status) for one in covered] == [
        ("small", "oracle", "played"),
        ("small", "cheap", "played"),
        ("absent", "oracle", "skipped"),
        ("absent", "cheap", "skipped"),
        ("stand_in", "oracle", "played"),
        ("stand_in", "cheap", "played"),
    ]
    assert covered[2].reason == "needs a variable" and covered[1].env == "guess_number"
    report = SuiteReport(narrow, covered)
    files = report.write(tmp_path)
    assert "| small | 1 to 7 | 1.000 [0.646, 1.000] (7) | 0.143 [0.026, 0.513] (7) |" in files[1].read_text()
    shown = Console(file=StringIO(), width=100)
    shown.print(report.table())
    assert "0.143 [0.026, 0.513] (7)" in shown.file.getvalue() and "skipped" in shown.file.getvalue()
    earned = next(row.result.mean_return for row in report.rows if row.model == "cheap" and row.result)
    assert f"{earned} return" in shown.file.getvalue()
    returns = files[1].read_text().partition("## Mean return")[2].partition("##")[0]
    assert "| small | 1 to 7 |" in returns and f"{earned} (7) |" in returns


@pytest.mark.parametrize("change", ["model", "weights", "server"])
def test_results_of_another_model_are_not_in_the_column_of_one_with_the_same_name(tmp_path, change):
    """A suite with `--model x/a --only small` may follow one with `--model y/a --only stand_in`."""
    folders = {name: evaluated(tmp_path / "a" / name, "oracle") for name in ("small", "stand_in")}
    for name, folder in folders.items():
        report, settings = (json.loads((folder / file).read_text()) for file in (REPORT, SETTINGS))
        if change == "model":
            report["model"] = f"/runs/{name}/a"
        elif change == "weights":
            settings["weights"] = [["model.safetensors", 9, len(name)]]
        else:
            settings["model.api"] = {"base_url": f"http://{name}:8000/v1", "options": {}}
        (folder / REPORT).write_text(json.dumps(report))
        (folder / SETTINGS).write_text(json.dumps(settings))
    played = SuiteOutcome("a", "stand_in", "guess_number", folders["stand_in"], "played")
    covered = with_earlier(suite(tmp_path, only=("stand_in",)), [played], tmp_path)
    assert [(one.evaluation, one.status) for one in covered] == [("small", "failed"), ("stand_in", "played")]
    assert covered[0].reason == "its folder holds results of another model or of other weights"
    earlier = with_earlier(suite(tmp_path), [], tmp_path)
    assert [(one.evaluation, one.status) for one in earlier] == [("small", "played"), ("stand_in", "failed")]


def test_results_of_another_server_are_not_those_of_a_model(tmp_path):
    folder = evaluated(tmp_path / "tiny", "oracle")
    report, settings = (json.loads((folder / file).read_text()) for file in (REPORT, SETTINGS))
    (folder / REPORT).write_text(json.dumps({**report, "model": "openai:tiny"}))
    (folder / SETTINGS).write_text(json.dumps({**settings, "model.api": {"base_url": "http://127.0.0.1:9/v1"}}))
    api = ("model.api.kind=openai", "model.api.name=tiny")
    for port, same in ((9, True), (8, False)):
        chosen = suite(tmp_path, *api, f"model.api.base_url=http://127.0.0.1:{port}/v1")
        assert plays_model(folder, compose_entry(chosen, "small")) is same


def test_the_reason_of_each_model_is_listed(tmp_path):
    found = [
        SuiteOutcome("a", "small", "guess_number", tmp_path, "failed", "out of memory"),
        SuiteOutcome("b", "small", "guess_number", tmp_path, "failed", "no key"),
        SuiteOutcome("a", "absent", "", tmp_path, "skipped", "needs a variable"),
        SuiteOutcome("b", "absent", "", tmp_path, "skipped", "needs a variable"),
    ]
    text = SuiteReport(suite(tmp_path, "model.path=x"), found).markdown()
    assert "* small, a, failed: out of memory\n* small, b, failed: no key\n* absent, skipped: needs a variable" in text


def test_a_reason_with_markdown_stays_text(tmp_path):
    reason = "see <b>here</b>\nand `there`"
    skipped = SuiteOutcome("a", "small", "guess_number", tmp_path, "skipped", reason)
    text = SuiteReport(suite(tmp_path, "model.path=x"), [skipped]).markdown()
    assert "* small, skipped: see \\<b>here\\</b> and \\`there\\`" in text


def concurrency(folder: Path, recipe: str, *overrides: str, **other: str) -> int:
    """Return the concurrency that a suite gives an evaluation on a machine without an accelerator."""
    for name, text in {"mine": recipe, **other}.items():
        (folder / f"{name}.yaml").write_text(
            f"defaults: [agent_eval, _self_]\n{text}" if "defaults" not in text else text
        )
    content = f"evaluations: {{one: {{recipe: {folder / 'mine.yaml'}, categories: [a]}}}}"
    chosen = suite(folder, *(overrides or ("model.path=oracle",)), content=content)
    found = [one for one in chosen.overrides("one") if one.startswith("evaluation.concurrency=")]
    assert "engine.device=cpu" in chosen.overrides("one")
    return int(found[-1].partition("=")[2]) if found else 0


@pytest.mark.skipif(not use_cpu_device(), reason="the settings of the recipe apply")
def test_a_suite_without_a_gpu_keeps_the_concurrency_of_a_recipe_and_of_a_model_behind_an_api(tmp_path):
    own, none = "evaluation: {concurrency: 4}\n", "evaluation: {samples: 1}\n"
    assert concurrency(tmp_path, none) == 32
    assert concurrency(tmp_path, own) == concurrency(tmp_path, "evaluation: {concurrency: 128}\n") == 0
    assert concurrency(tmp_path, "defaults: [base, _self_]\n", base=own) == 0
    assert concurrency(tmp_path, "defaults: [base, _self_]\n", base=none) == 32
    api = ("model.api.kind=openai", "model.api.name=tiny")
    assert concurrency(tmp_path, none, *api) == 0
    assert concurrency(tmp_path, "model: {path: null, api: {kind: openai, name: tiny}}\n", "model.api.name=tiny") == 0
    assert concurrency(tmp_path, own, "model.path=oracle", "evaluation.concurrency=7") == 7
