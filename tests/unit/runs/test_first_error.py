"""First error in the output of a process, with the prefixes of Ray and vLLM, and the filter of equal tracebacks."""

import io
import logging

import pytest

from verl_agent.runs.first_error import MAX_CHARS, MAX_LINES, OneTraceback, first_error, first_error_in

ENGINE = "\x1b[36m(RunScopedHttpServer pid=55)\x1b[0m (EngineCore pid=62) ERROR 11-24 16:09:01 [core.py:1346] "
CHAINED = """INFO 11-24 16:09:01 [cpu.py:1] ModuleNotFoundError("No module named 'torchtitan'")
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    raise KeyError(1)
KeyError: 1

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "b.py", line 2, in <module>
RuntimeError: Engine core initialization failed. See root cause above."""
COMPILER = """Traceback (most recent call last):
  File "cpp_builder.py", line 1, in compile
torch._inductor.exc.InductorError: CppCompileError: C++ compile error

Command:
g++ x.cpp

Output:
x.cpp:1:10: error: 'Python' was not declared
compilation terminated.

Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("INFO 11-24 16:09:01 [a.py:1] all is well", ""),
        (CHAINED, "KeyError: 1"),
        ("\n".join(ENGINE + line for line in CHAINED.splitlines()), "KeyError: 1"),
        (
            "WARNING 11-24 16:08:56 [cpu.py:471] Failed to import from vllm._C: ImportError('libnuma.so.1')\n"
            + CHAINED,
            "Failed to import from vllm._C: ImportError('libnuma.so.1')",
        ),
        ("(raylet) bash: line 1: /home/u/my: No such file", "bash: line 1: /home/u/my: No such file"),
        ("*** SIGBUS received at time=1764 on cpu 0 ***\nPC: @ 0x7f", "*** SIGBUS received at time=1764 on cpu 0 ***"),
        ("Traceback (most recent call last):\n  File", ""),
    ],
)
def test_the_first_error_is_found_behind_prefixes(text, expected):
    assert first_error(text) == expected


def test_the_compilers_own_output_is_part_of_the_error():
    lines = first_error(COMPILER).splitlines()
    assert lines[0].endswith("CppCompileError: C++ compile error")
    assert lines[-2:] == ["x.cpp:1:10: error: 'Python' was not declared", "compilation terminated."]


def test_long_messages_keep_their_beginning_and_end():
    text = "\n".join([TRACE, "ValueError: " + "x" * 1000, *map(str, range(100))])
    lines = first_error(text).splitlines()
    assert len(lines) == MAX_LINES and lines[-1] == "99" and len(lines[0]) == MAX_CHARS + 1


TRACE = "Traceback (most recent call last):"


def test_files_that_were_removed_are_left_out(tmp_path):
    (tmp_path / "err").write_text(CHAINED)
    assert first_error_in([tmp_path / "missing", tmp_path / "err"]) == "KeyError: 1"


def test_64_equal_errors_print_one_traceback_and_a_count():
    output, logger = io.StringIO(), logging.Logger("verl")
    logger.addHandler(logging.StreamHandler(output))
    logger.addFilter(OneTraceback())
    for number in range(64):
        for error in (RuntimeError(f"engine died\nin request {number}"), ValueError("other")):
            logger.error("Error in episode %d", number, exc_info=(type(error), error, None))
    text = output.getvalue()
    assert text.count("Error in episode") == text.count("in request") + text.count("ValueError: other") == 2
    assert "RuntimeError: the same error as before, 64 times by now" in text
    assert len(text.splitlines()) < 20
