"""The view follows a log that is being written, as lines in a file and as a table in a terminal."""

import json
import sys
from io import StringIO

from rich.console import Console

from verl_agent.trace.progress import ProgressView


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


def test_each_step_is_one_line_aligned_under_the_header(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text(line(1) + line(2))
    view, output = plain(path)
    view.update()
    header, first, second = output.getvalue().splitlines()
    titles = ["step", "horizon", "reward", "success", "turns", "invalid", "entropy", "gap", "seconds", "left"]
    assert header.split() == titles
    assert first.split() == ["1/10", "10", "0.500", "25.0%", "7.4", "3.1%", "0.800", "0.0031", "60.0", "0:09:00"]
    assert len(header) == len(first) == len(second)


def test_only_what_is_new_is_shown(tmp_path):
    path = tmp_path / "m.jsonl"
    view, output = plain(path)
    view.update()
    assert output.getvalue() == ""
    append(path, line(1))
    view.update()
    view.update()
    assert output.getvalue().count("1/10") == 1


def test_a_line_is_shown_when_it_is_complete(tmp_path):
    path = tmp_path / "m.jsonl"
    view, output = plain(path)
    append(path, line(1)[:40])
    view.update()
    assert output.getvalue() == ""
    append(path, line(1)[40:])
    view.update()
    assert "1/10" in output.getvalue()


def test_a_restart_that_empties_the_log_is_followed(tmp_path):
    path = tmp_path / "m.jsonl"
    view, output = plain(path)
    append(path, line(1) + line(2))
    view.update()
    path.write_text(line(3))
    view.update()
    assert "3/10" in output.getvalue()


def test_a_value_that_was_not_logged_is_a_dash(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 4, "data": {"actor/entropy": 0.5}}\n')
    view, output = plain(path)
    view.update()
    assert output.getvalue().splitlines()[1].split() == ["4/10", *"-----", "0.500", *"---"]


def test_validation_has_a_line_of_its_own(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 0, "data": {"val-core/guess/success/mean@1": 0.5, "val-aux/guess/reward/mean@1": 12}}\n')
    view, output = plain(path)
    view.update()
    assert output.getvalue() == "validation after step 0: guess reward 12.000, success 50.0%\n"


def test_the_remaining_time_includes_validation(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text(line(9, **{"timing_s/testing": 30.0}))
    view, output = plain(path)
    view.update()
    assert output.getvalue().split()[-1] == "0:01:30"


def test_start_up_phases_are_printed_once(tmp_path):
    view, output = plain(tmp_path / "m.jsonl")
    with view:
        view.phase("starting Ray")
        view.phase("starting Ray")
        view.phase("loading model")
    assert output.getvalue() == "starting Ray ...\nloading model ...\n"


def test_a_terminal_shows_the_phase_then_the_table(tmp_path):
    path = tmp_path / "m.jsonl"
    output = StringIO()
    console = Console(file=output, force_terminal=True, width=120)
    with ProgressView(path, 10, console) as view:
        view.phase("loading model")
        console.print("another message")
        append(path, line(1, **{"val-core/guess/success/mean@1": 0.5}))
    shown = output.getvalue()
    assert shown.index("loading model") < shown.index("1/10") < shown.index("validation after step 1")


def test_the_last_step_is_shown_even_without_another_update(tmp_path):
    path = tmp_path / "m.jsonl"
    view, output = plain(path)
    with view:
        append(path, line(10))
    assert "10/10" in output.getvalue()
    assert output.getvalue().split()[-1] == "0:00:00"


def test_what_libraries_print_stays_out_of_the_live_table(tmp_path, capsys):
    """Rich redirects stdout to the terminal by default, past the log that `terminal.redirect_output` sends it to."""
    terminal = StringIO()
    with ProgressView(tmp_path / "none.jsonl", 5, Console(file=terminal, force_terminal=True)):
        sys.stdout.write("a library's chatter")
    assert "chatter" not in terminal.getvalue()
    assert "chatter" in capsys.readouterr().out
