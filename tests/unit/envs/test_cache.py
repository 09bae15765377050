"""Test the cache folder and the name of a user who has neither a name nor a home, as in a container."""

import os
import subprocess
import sys

import pytest

NOBODY = 12345
CODE = f"""
import os
os.setgid({NOBODY}); os.setuid({NOBODY})
from verl_agent.errors import ConfigError
from verl_agent.envs.cache import cache_dir
from verl_agent.system.user import user_name
print(user_name())
try:
    print(cache_dir())
except ConfigError as error:
    print("ConfigError:", error)
"""


def lines(**variables: str) -> list[str]:
    """Return what a process of a user without a name prints."""
    done = subprocess.run(
        [sys.executable, "-c", CODE], env={"PYTHONPATH": os.getcwd(), **variables}, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@needs_root
@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"VERL_AGENT_CACHE": "/chosen"}, "/chosen"),
        ({"XDG_CACHE_HOME": "/caches"}, "/caches/verl_agent"),
        ({"HOME": "/home/ada"}, "/home/ada/.cache/verl_agent"),
    ],
)
def test_a_user_without_a_name_has_the_cache_of_the_variables(variables: dict[str, str], folder: str):
    assert lines(**variables) == [f"uid {NOBODY}", folder]


@needs_root
def test_a_user_without_a_home_is_told_which_variable_to_set():
    name, error = lines()
    assert name == f"uid {NOBODY}"
    assert error == f"ConfigError: user uid {NOBODY} has no home folder. Set VERL_AGENT_CACHE or HOME to a folder."
