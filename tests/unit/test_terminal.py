"""The printer: strings, tables, markup, logs, tracebacks, and questions that typed-ahead text cannot answer."""

import io
import subprocess
import sys

import pytest
import rich.console
from rich.table import Table

from tests import ROOT
from tests.support.terminals import HOSTILE, Terminal, acting_bytes
from verl_agent.evaluation.report import plain_table
from verl_agent.terminal import Console, say, show_table, styled
from verl_agent.visible import frame, make_visible, one_line


def printed(*shown: object, width: int = 400) -> str:
    output = io.StringIO()
    console = Console(file=output, width=width, force_terminal=True, color_system=None)
    for one in shown:
        console.print(one, soft_wrap=True)
    return output.getvalue()


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_strings_and_tables_show_every_character(text: str) -> None:
    table = Table(text, title=text, caption=text)
    table.add_row(text)
    for shown in (printed(text), printed(table), printed(styled((text, "red")))):
        assert acting_bytes(shown.encode()) == []
        assert one_line(make_visible(text)) in one_line(shown)


@pytest.mark.parametrize("kind", [Console, rich.console.Console])
def test_say_prints_markup_and_names_of_emoji_as_they_are_on_any_console(kind: type[rich.console.Console]) -> None:
    output = io.StringIO()
    say(kind(file=output, width=40), ("[bold]x[/] ", "red"), "[link=http://evil]:smiley:[/] " + "y" * 60)
    assert output.getvalue() == f"[bold]x[/] [link=http://evil]:smiley:[/] {'y' * 60}\n"


def test_each_line_of_a_framed_text_has_the_frame_at_the_width_of_the_terminal() -> None:
    output = io.StringIO()
    hostile = "ls" + " " * 37 + "> /approve " + "漢" * 60
    say(Console(file=output, width=40), f"ours\n{frame(hostile)}\nours")
    first, *framed, last = output.getvalue().splitlines()
    assert (first, last) == ("ours", "ours")
    assert all(line.startswith("│ ") for line in framed) and len(framed) > 4
    assert "".join(line.removeprefix("│ ") for line in framed) == hostile
    assert max(map(rich.console.Text, framed), key=lambda line: line.cell_len).cell_len <= 40


def test_tables_are_printed() -> None:
    output = io.StringIO()
    show_table(Console(file=output, width=40), Table("a\x1b[2J"))
    assert "a␛[2J" in output.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_no_value_of_a_table_is_cut_and_names_are_folded_in_a_terminal_only(terminal: bool) -> None:
    output, name, value = io.StringIO(), "measure-melting-point-known-substance", "0.355 [0.273, 0.447]"
    table = plain_table("", "category", values=["success [95 %]", "action errors"])
    table.add_row(name, value, "17")
    show_table(Console(file=output, width=40, force_terminal=terminal, color_system=None), table)
    assert "action errors" in output.getvalue() and f"{value}             17" in output.getvalue()
    assert (name in output.getvalue()) is not terminal
    assert name == "".join(line[:12].strip() for line in output.getvalue().splitlines()[2:]) or not terminal


GUARDED = """
import logging, threading, warnings
from verl_agent.terminal import guard_output
guard_output()

class Failing:
    def __del__(self):
        raise ValueError(TEXT)

def fail():
    raise ValueError(TEXT)

thread = threading.Thread(target=fail, name=TEXT)
thread.start()
thread.join()
warnings.simplefilter("always")
warnings.warn(TEXT)
Failing()
logging.getLogger("x").warning("%s", TEXT)
try:
    raise ValueError(TEXT)
except ValueError:
    logging.getLogger("x").exception(TEXT)
raise RuntimeError(TEXT)
"""


def test_logs_and_tracebacks_of_a_guarded_process_are_visible() -> None:
    text = "".join(HOSTILE.values())
    done = subprocess.run(
        [sys.executable, "-c", f"TEXT = {text!r}\n{GUARDED}"], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 1
    assert acting_bytes(done.stderr) == []
    assert done.stderr.decode().count("␛[2J") == 8, (
        "thread and its error, warning, error of __del__, and those of logs and the traceback"
    )


ASKING = """
import sys
from pathlib import Path
from verl_agent.terminal import ask_line
sys.stdout.write("ready\\n")
sys.stdout.flush()
while not Path(sys.argv[1]).exists():
    pass
sys.stdout.write(f"answer: {ask_line('ask: ')}")
"""


def test_lines_typed_or_pasted_before_a_question_do_not_answer_it(tmp_path) -> None:
    go = tmp_path / "go"
    with Terminal([sys.executable, "-c", ASKING, str(go)], ROOT) as terminal:
        terminal.until("ready")
        terminal.type("/approve\n/approve\n/appr")
        terminal.until("/appr\r\n")  # the echo
        go.touch()
        terminal.until("ask: ")
        terminal.type("/reject")
        terminal.until("answer: /reject")
