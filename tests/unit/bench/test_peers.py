"""Tests of the comparison with TRL, without running either side."""

import pytest

from tests.bench.peers.__main__ import markdown, parse
from tests.bench.peers.sides import Run, Step, Trl, VerlAgent, code_lines

SIDES = (VerlAgent(), Trl())


def step(seconds: float, solved: int) -> Step:
    return Step(seconds / 4, seconds / 2, seconds / 4, seconds, 8, solved)


def test_the_table_compares_the_steps_that_both_had_reached_in_the_same_time():
    ours = Run("verl-agent", [step(90, 0), step(8, 2), step(12, 4)], wall_s=130, peak_gb=7.5)
    trl = Run("TRL", [step(30, 0), step(20, 1), step(20, 6), step(20, 8)], wall_s=140, peak_gb=7.0)
    assert (ours.start_s, trl.start_s) == (20, 50)
    assert trl.at(130) is trl.steps[2] and trl.at(1) is trl.steps[0] and ours.at(130) is ours.steps[2]
    table = markdown([ours, trl], SIDES, {"trl": "1.16.0"})
    assert "| seconds a step | 10.0 (8.0 to 12.0) | 20.0 (20.0 to 20.0) |" in table  # without the first step
    assert "| - update | 5.0 (4.0 to 6.0) | 10.0 (10.0 to 10.0) |" in table
    assert "| episodes a second | 0.80 | 0.40 |" in table
    assert "| memory at the peak, GB | 7.5 | 7.0 |" in table
    assert "| success in the last step within 130 s | 50.0% of 8 episodes | 75.0% of 8 episodes |" in table
    assert "trl 1.16.0" in table


def test_lines_of_code_leave_out_comments_and_docstrings(tmp_path):
    python, recipe = tmp_path / "a.py", tmp_path / "a.yaml"
    python.write_text(
        '"""Module.\n\nText.\n"""\n\n# comment\nx = """a\nb"""\n\n\ndef f():\n    """Doc."""\n    return x  # c\n'
    )
    recipe.write_text("# comment\na: 1\n\nb:\n  c: 2  # two\n")
    assert (code_lines(python), code_lines(recipe)) == (4, 3)


def test_the_files_of_user_code_exist():
    assert all(file.is_file() for side in SIDES for file in side.user_files)


@pytest.mark.parametrize("wrong", [["--rounds", "0"], ["--steps", "1"], ["--tasks", "3", "--samples", "2"]])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(SystemExit):
        parse(wrong)
