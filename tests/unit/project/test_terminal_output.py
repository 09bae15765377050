"""No code writes to a terminal but through `verl_agent.terminal`, which shows the texts of others visibly."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

PRINTER = "verl_agent/terminal.py"
TO_PROGRAMS = {
    "env_adapters/terminal/driver.py",  # JSON for the host of the sandbox
    "verl_agent/envs/program/inside.py",  # JSON for the host, from inside a sandbox
    "verl_agent/envs/program/verifiers_program.py",  # JSON for the gateway
    "verl_agent/evaluation/what_if/raw_prompts.py",  # JSON for the viewer
    "verl_agent/envs/machine/keeper.py",  # output of the command, which its owner reads
    "verl_agent/platform/exits.py",  # a process and its signal, in the log that the supervisor reads
}
"""Programs whose output another program of this package reads."""
OWN_COMMANDS = {
    "env_adapters/deepsearch/__main__.py",
    "env_adapters/scienceworld/tabulate.py",
    "env_adapters/web_sites/cli.py",
    "env_adapters/web_sites/supervisor.py",
}
"""Commands of adapters, which may not import the printer; they show what they install, and no episode."""
CALLS = {
    *("print", "input", "pprint", "pprint.pprint", "rich.print"),
    *("typer.echo", "typer.secho", "typer.prompt", "typer.confirm", "click.echo", "click.secho"),
    *("logging.basicConfig", "logging.StreamHandler", "StreamHandler"),
    *("traceback.print_exc", "traceback.print_exception", "traceback.print_stack"),
}
HOOKS = {
    *("sys.excepthook", "threading.excepthook", "sys.unraisablehook"),
    *("warnings.showwarning", "warnings.formatwarning", "logging.captureWarnings"),
}
"""Hooks by which Python prints errors and warnings; the printer sets them."""
METHODS = (".print", ".print_json", "console.input", ".print_exception")
"""Ends of calls of a console of rich."""
STREAMS = {"sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"}
RICH = {"rich", "rich.markup", "rich.prompt", "rich.pretty", "rich.logging", "rich.traceback"}
"""Modules of rich that print, or read markup, by themselves."""


def other_ways(source: str) -> Iterator[str]:
    """Yield each way in which a module writes to a terminal by itself."""
    nodes = list(ast.walk(ast.parse(source)))
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        first = ast.unparse(call.args[0]) if call.args else ""
        of, _, method = name.rpartition(".")
        if name in CALLS or name.endswith(METHODS) or (method in ("write", "writelines") and of in STREAMS):
            yield name
        if name in ("open", "os.open", "Path", "os.write") and first in ("'/dev/tty'", "1", "2"):
            yield f"{name}({first})"
        if any(one.arg == "file" and ast.unparse(one.value) in STREAMS for one in call.keywords):
            yield f"{name}(file=...)"
        if name in ("Text", "Text.from_markup", "Text.assemble", "rich.text.Text") and "rich.text" in source:
            yield name
    for node in (node for node in nodes if isinstance(node, ast.Attribute)):
        name = ast.unparse(node)
        if name in HOOKS or name in ("sys.__excepthook__", "threading.__excepthook__", "sys.__unraisablehook__"):
            yield name
    for node in nodes:
        names = {one.name for one in node.names} if isinstance(node, ast.Import | ast.ImportFrom) else set()
        console = "rich.console" in ast.unparse(node) and "Console" in names
        if isinstance(node, ast.ImportFrom) and (node.module in RICH or console):
            yield f"from {node.module} import {', '.join(names)}"
        if isinstance(node, ast.Import) and names & (RICH | {"rich.console"}):
            yield f"import {', '.join(names)}"


def test_nothing_writes_to_a_terminal_by_itself() -> None:
    allowed = {PRINTER} | TO_PROGRAMS | OWN_COMMANDS
    found = {}
    for path in [*(ROOT / "verl_agent").rglob("*.py"), *(ROOT / "env_adapters").rglob("*.py")]:
        name = str(path.relative_to(ROOT))
        if name not in allowed and (ways := sorted(set(other_ways(path.read_text(encoding="utf-8"))))):
            found[name] = ways
    assert found == {}, "use say, show_table, ask_line or write_output of verl_agent.terminal"


@pytest.mark.parametrize("name", sorted(TO_PROGRAMS | OWN_COMMANDS))
def test_an_exception_is_still_needed(name: str) -> None:
    assert list(other_ways((ROOT / name).read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "source",
    [
        "print(action)",
        "console.print(action, markup=False)",
        "import sys\nsys.stdout.write(action)",
        "import sys\nprogress(file=sys.stderr)",
        "from rich.console import Console",
        "import rich.console",
        "from rich import print as show",
        "from rich.text import Text\nText(action)",
        "typer.secho(action)",
        "open('/dev/tty')",
        "import os\nos.write(2, action)",
        "line = input(question)",
        "import traceback\ntraceback.print_exc()",
        "import logging\nlogging.basicConfig()",
        "import threading\nthreading.excepthook = show",
        "import sys\nsys.__unraisablehook__(error)",
        "import warnings\nwarnings.showwarning = show",
    ],
)
def test_another_way_is_found(source: str) -> None:
    assert list(other_ways(source))


def test_the_printer_sets_each_hook_that_prints_an_error_by_itself() -> None:
    source = ast.parse((ROOT / PRINTER).read_text(encoding="utf-8"))
    assigned = {ast.unparse(to) for node in ast.walk(source) if isinstance(node, ast.Assign) for to in node.targets}
    assert {"sys.excepthook", "threading.excepthook", "sys.unraisablehook", "warnings.showwarning"} <= assigned


def test_streams_of_others_are_no_terminal(tmp_path: Path) -> None:
    assert not list(other_ways("import sys\nsys.stdout.flush()\nfile.write(text)\nfrom rich.table import Table"))
