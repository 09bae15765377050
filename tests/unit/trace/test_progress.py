"""Test the progress view of a growing metrics log, as plain lines and as a table in a terminal."""

import json
import sys
from io import StringIO

import pytest
from rich.console import Console

from verl_agent.runs.console import progress_bar
from verl_agent.runs.folder import RunFolder
from verl_agent.trace.progress import ProgressView
from verl_agent.training.offline.run import showing_progress
from verl_agent.training.offline.sft import SFT

TITLES = ["step", "horizon", "reward", "success", "turns", "invalid", "entropy", "gap", "seconds", "left"]


def line(step: int, **others: float) -> str:
    data = {
        "episode/horizon": 10,
        "episode/reward_mean": 0.5,
        "episode/success_rate": 0.25,
        "episode/turns_mean": 7.4,
        "action/invalid_action": 0.031,
        "actor/entropy": 0.8,
        "training/rollout_probs_diff_mean": 0.0031,
        "timing_s/step": 60.0,
    }
    return json.dumps({"step": step, "data": data | others}) + "\n"


def plain(path, total_steps: int = 10) -> tuple[ProgressView, StringIO]:
    output = StringIO()
    return ProgressView(path, total_steps, Console(file=output, width=40)), output


def append(path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_each_step_is_one_line_aligned_with_the_header(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text(line(1) + line(2))
    view, output = plain(path)
    view.update()
    header, first, second = output.getvalue().splitlines()
    assert header.split() == TITLES
    assert first.split() == ["1/10", "10", "0.500", "25.0%", "7.4", "3.1%", "0.800", "0.0031", "60.0", "0:09:00"]
    assert len(header) == len(first) == len(second) <= 80


def test_the_mean_return_of_a_step_has_its_margin_beside_it(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text(line(1, **{"episode/reward_margin": 0.07}))
    view, output = plain(path)
    view.update()
    header, row = output.getvalue().splitlines()
    assert row.split()[header.split().index("reward")] == "0.50±.07" and len(header) == len(row) <= 80


def test_a_run_that_logs_no_probabilities_of_the_trainer_shows_the_difference_of_log_probs(tmp_path):
    path, output = tmp_path / "m.jsonl", StringIO()
    values = json.loads(line(1, **{"actor/ppo_kl": -0.002}))
    del values["data"]["training/rollout_probs_diff_mean"]
    path.write_text(json.dumps(values) + "\n")
    ProgressView(path, 2, Console(file=output, width=80)).update()
    header, row = (text.split() for text in output.getvalue().splitlines())
    assert row[header.index("kl")] == "-0.0020" and "gap" not in header


def test_notes_on_a_validation_stand_below_it_until_the_end_of_the_run_prints_its_own(tmp_path):
    path, output = tmp_path / "m.jsonl", StringIO()
    path.write_text("".join(line(step, **{"val-core/a/reward/mean@1": 0.5}) for step in (1, 2)))
    view = ProgressView(path, 2, Console(file=output, width=80), lambda: ["finding: equal groups"])
    view.update()
    first, note, _, last = output.getvalue().splitlines()[-4:]
    assert (first, note) == ("validation after step 1: a reward 0.500", "finding: equal groups")
    assert last == "validation after step 2: a reward 0.500"


def test_each_complete_line_is_shown_once_also_after_a_restart_that_emptied_the_log(tmp_path):
    path = tmp_path / "m.jsonl"
    view, output = plain(path)
    for text, shown in (("", 0), (line(1)[:40], 0), (line(1)[40:], 1), ("", 1)):
        append(path, text)
        view.update()
        assert output.getvalue().count("1/10") == shown
    append(path, line(2))
    view.update()
    path.write_text(line(3))
    view.update()
    assert "3/10" in output.getvalue()


VALIDATED = '{"step": 0, "data": {"val-core/guess/success/mean@1": 0.5, "val-aux/guess/reward/mean@1": 12}}\n'
TESTED = '{"step": 8, "data": {"test-core/guess/reward/mean@1": 0.25, "val-core/guess/reward/mean@1": 0.5}}\n'


@pytest.mark.parametrize(
    ("text", "steps", "ends"),
    [
        ('{"step": 4, "data": {"actor/entropy": 0.5}}\n', 10, ["4/10 - - - - - 0.500 - - -"]),
        (VALIDATED, 10, ["validation after step 0: guess success 50.0%"]),
        (TESTED, 10, ["validation after step 8: guess reward 0.500", "test after step 8: guess reward 0.250"]),
        (line(9, **{"timing_s/testing": 30.0}), 10, ["0:01:30"]),
        (line(0), 100, ["1:40:00"]),
        (line(0), 1440, ["1d 0h"]),
        (line(0), 20_000, ["13d 21h"]),
    ],
)
def test_last_lines_have_results_dashes_for_missing_values_and_the_time_left(tmp_path, text, steps, ends):
    path = tmp_path / "m.jsonl"
    path.write_text(text)
    view, output = plain(path, steps)
    view.update()
    lines = [" ".join(one.split()) for one in output.getvalue().splitlines()]
    assert [one[-len(end) :] for one, end in zip(lines[-len(ends) :], ends, strict=True)] == ends


def test_start_up_phases_are_printed_once(tmp_path):
    view, output = plain(tmp_path / "m.jsonl")
    with view:
        view.phase("starting Ray")
        view.phase("starting Ray")
        view.phase("loading model")
    assert output.getvalue() == "starting Ray ...\nloading model ...\n"


def test_a_terminal_shows_the_phase_before_the_table(tmp_path):
    path = tmp_path / "m.jsonl"
    output = StringIO()
    console = Console(file=output, force_terminal=True, width=120)
    with ProgressView(path, 10, console) as view:
        view.phase("loading model")
        console.print("another message")
        append(path, line(1, **{"val-core/guess/success/mean@1": 0.5}))
    shown = output.getvalue()
    assert shown.index("loading model") < shown.index("1/10") < shown.index("validation after step 1")


def test_a_terminal_of_80_columns_shows_all_names_and_the_time_left(tmp_path):
    path = tmp_path / "m.jsonl"
    output = StringIO()
    path.write_text(line(1000, **{"timing_s/step": 1234.5, "critic/score/mean": -12.345}))
    with ProgressView(path, 1040, Console(file=output, force_terminal=True, width=80, color_system=None)) as view:
        view.update()
    shown = " ".join(output.getvalue().split())
    assert " ".join(TITLES) in shown
    assert "1000/1040 10 0.500 25.0% 7.4 3.1% 0.800 0.0031 1234.5 13:43:00" in shown


@pytest.mark.parametrize("unit", ["episodes", "steps"])
def test_a_bar_in_80_columns_cuts_neither_its_description_nor_its_times(unit):
    output = StringIO()
    description = "success 100.0%, 12 environment errors, 5 overlong prompts, 2 with a person's decisions"
    with progress_bar(Console(file=output, force_terminal=True, width=80, color_system=None), unit) as bar:
        bar.add_task(description, total=33_000, completed=29_999)
    shown = output.getvalue()
    assert "…" not in shown and f"29999/33000 {unit} 0:00:00 left -:--:--" in shown
    assert all(word in shown for word in description.split())


def test_the_last_step_is_shown_even_without_another_update(tmp_path):
    path = tmp_path / "m.jsonl"
    view, output = plain(path)
    with view:
        append(path, line(10))
    assert "10/10" in output.getvalue()
    assert output.getvalue().split()[-1] == "0:00:00"


def test_output_of_libraries_stays_out_of_the_live_table(tmp_path, capsys):
    """Rich redirects stdout to the terminal by default, bypassing the log of `runs.console.redirect_output`."""
    terminal = StringIO()
    with ProgressView(tmp_path / "none.jsonl", 5, Console(file=terminal, force_terminal=True)):
        sys.stdout.write("a library's chatter")
    assert "chatter" not in terminal.getvalue()
    assert "chatter" in capsys.readouterr().out


def test_supervised_training_prints_lines_where_no_bar_can_be_drawn(tmp_path):
    folder, output = RunFolder(tmp_path, "now"), StringIO()
    folder.metrics.parent.mkdir()
    lines = [{"step": step, "data": {"train/loss": 3.0 - step}} for step in (1, 2, 3)]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with showing_progress(folder, 3, SFT, Console(file=output)):
        pass
    assert output.getvalue() == "step 1/3  loss 2.000\nstep 3/3  loss 0.000\n", "the first, the last, every 10 s"
