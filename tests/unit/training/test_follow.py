"""Following a run of reinforcement learning by the files in its folder."""

import io
import json
import shlex
from contextlib import chdir
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from rich.console import Console

from tests import ROOT
from tests.support.episodes import talk
from verl_agent.envs.settings import EnvSettings
from verl_agent.models.checkpoints import finish_checkpoint
from verl_agent.runs.folder import RunFolder
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.training.follow import describe_validation, evaluation_command, finish, follow_run


def saved(root, step: int) -> None:
    """Write a checkpoint: its folder, the tracker, and the manifest that marks it as complete."""
    (root / f"global_step_{step}" / "actor").mkdir(parents=True, exist_ok=True)
    finish_checkpoint(root / f"global_step_{step}")
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))


def test_each_checkpoint_prunes_older_ones_and_plots_the_curves(tmp_path):
    """Two checkpoints are of an earlier start; verl itself would keep them."""
    for step in (1, 2):
        saved(tmp_path, step)
    folder = RunFolder.at(tmp_path)
    folder.metrics.parent.mkdir()
    folder.log.parent.mkdir()
    folder.log.touch()
    with follow_run(folder, 4, 2, Console(file=io.StringIO())):
        assert not folder.curves.exists()
        saved(tmp_path, 3)
        (tmp_path / "global_step_4" / "actor").mkdir(parents=True)  # is being written
        line = {"step": 3, "data": {"episode/reward_mean": 0.5}}
        folder.metrics.write_text(json.dumps(line) + "\n")
    assert sorted(path.name for path in tmp_path.glob("global_step_*")) == [f"global_step_{n}" for n in (2, 3, 4)]
    assert folder.curves.is_file()


def played(purpose: str, step: int, *rewards: float) -> list[EpisodeRecord]:
    """Return an episode of each task of a purpose at one step."""
    tasks = enumerate(rewards)
    return [{**talk(task=f"{purpose} {i}", reward=reward, purpose=purpose), "step": step} for i, reward in tasks]


def summary_of(root, records: list[EpisodeRecord], dev_tasks: str | None, **env: bool) -> str:
    """Return what a finished run prints whose best checkpoint is of step 1."""
    (root / "global_step_1/actor").mkdir(parents=True)
    (root / "global_step_1/actor/model_world_size_1_rank_0.pt").write_text("weights")
    saved(root, 1)
    folder = RunFolder.at(root)
    folder.metrics.parent.mkdir()
    folder.metrics.write_text(json.dumps({"step": 1, "data": {"val-core/talk/success/mean@1": 0.75}}) + "\n")
    with EpisodeWriter(root / "episodes/a.jsonl") as writer:
        for record in records:
            writer.write(record)
    output = io.StringIO()
    settings = EnvSettings(name="talk", dev_tasks=dev_tasks, **env)
    finish(RunFolder.at(root), [settings], Console(file=output, width=200))
    return output.getvalue()


def test_a_run_reports_the_test_tasks_and_the_tasks_that_chose_the_best_checkpoint(tmp_path):
    dev = [*played("validation", 0, 0.0, 0.0), *played("validation", 1, 1.0, 1.0)]
    test = [*played("test", 0, 0.0, 0.0, 0.0, 0.0), *played("test", 1, 1.0, 0.0, 0.0, 0.0)]
    text = summary_of(tmp_path, dev + test, "auto")
    assert "success on 4 test tasks: step 0 0.0%, step 1 25.0%; difference 0.250" in text
    assert "best checkpoint: step 1, success 0.750 on env.dev_tasks, which chose it" in text
    assert "verl-agent eval" not in text


def test_a_validation_is_printed_with_the_interval_of_its_return(tmp_path):
    with EpisodeWriter(tmp_path / "episodes/a.jsonl") as writer:
        for record in [*played("validation", 0, 0.0, 0.0), *played("validation", 2, 0.25, 0.75)]:
            writer.write(record)
    (line,) = describe_validation(RunFolder.at(tmp_path))
    assert line.startswith("validation: all: 2 tasks, 2 episodes, success") and ", return 0.500 [" in line
    assert describe_validation(RunFolder.at(tmp_path / "none")) == []


def test_a_run_whose_last_step_is_not_the_best_prints_the_command_that_tests_the_best(tmp_path):
    text = summary_of(tmp_path, [*played("test", 0, 0.0), *played("test", 2, 1.0)], "auto")
    assert "the test tasks were played at step 2; to test step 1: verl-agent eval" in text
    assert f"EVALUATION_RECIPE_OF_TALK model.path={tmp_path / 'best'} env.eval_tasks=test" in text


def test_a_run_that_has_tested_its_best_checkpoint_reports_that_test(tmp_path):
    """`trainer.test_best` plays the test tasks at each new best checkpoint."""
    tests = [*played("test", 0, 0.0, 0.0), *played("test", 1, 1.0, 0.0), *played("test", 2, 1.0, 1.0)]
    text = summary_of(tmp_path, tests, "auto")
    assert "success on 2 test tasks: step 0 0.0%, step 2 100.0%" in text
    assert "best checkpoint: step 1" in text
    assert "its success on 2 test tasks: 0.500 [0.095, 0.905]" in text
    assert "verl-agent eval" not in text


@pytest.mark.parametrize(("cpu", "recipe"), [(True, "eval_cpu.yaml"), (False, "eval.yaml")])
def test_the_command_that_tests_a_checkpoint_names_the_recipe_of_the_environment(cpu, recipe):
    with chdir(ROOT):
        command = evaluation_command(EnvSettings("guess_number", eval_tasks="small_test"), Path("runs/a/best"), cpu)
    assert command == (
        f"verl-agent eval recipes/guess_number/{recipe} model.path=runs/a/best env.eval_tasks=small_test"
    )


def test_the_command_that_tests_a_checkpoint_quotes_its_path_for_the_shell_and_for_hydra():
    command = evaluation_command(EnvSettings("toy"), Path("Größe (1), a=b/it's"), cpu=True)
    *_, model, _ = shlex.split(command)
    parsed = OverridesParser.create().parse_override(model)
    assert (parsed.key_or_group, parsed.value()) == ("model.path", "Größe (1), a=b/it's")


def test_a_run_without_a_first_test_reports_the_last_with_its_interval(tmp_path):
    text = summary_of(tmp_path, [*played("validation", 1, 1.0), *played("test", 1, 1.0, 0.0)], "auto")
    assert "success on 2 test tasks: step 1 0.500 [0.095, 0.905]" in text


def test_a_run_prints_the_findings_of_the_viewer_one_a_line(tmp_path):
    text = summary_of(tmp_path, [*played("train", 1, 0.0, 0.0), *played("train", 2, 0.0, 0.0)], "auto")
    (finding,) = [line for line in text.splitlines() if line.startswith("finding: ")]
    assert "The mean return is 0 at every one of the latest 2 steps" in finding
    assert finding.endswith(f"The episodes: verl-agent view {tmp_path}")


def test_an_interrupted_run_that_tested_only_the_initial_policy_compares_its_validations(tmp_path):
    dev = [*played("validation", 0, 0.0, 0.0), *played("validation", 1, 1.0, 1.0)]
    text = summary_of(tmp_path, dev + played("test", 0, 0.0), "auto")
    assert "success on 2 held-out tasks: step 0 0.0%, step 1 100.0%" in text
    assert "verl-agent eval" not in text


@pytest.mark.parametrize(("dev_tasks", "overlap"), [(None, False), ("auto", True)])
def test_a_run_that_validates_on_the_test_tasks_says_that_they_chose_the_best_checkpoint(tmp_path, dev_tasks, overlap):
    records = played("validation", 0, 0.0) + played("validation", 1, 1.0)
    text = summary_of(tmp_path, records, dev_tasks, overlap=overlap)
    assert "success on 1 held-out tasks: step 0 0.0%, step 1 100.0%" in text
    assert "best checkpoint: step 1, success 0.750 on env.eval_tasks, which chose it" in text
