"""Test the check of agents on those of this package, and on broken ones of another package."""

import sys

import pytest
from typer.testing import CliRunner

from tests.support.environments import skip_without_packages
from tests.support.packages import write_metadata
from verl_agent.agents.check import check_agent
from verl_agent.agents.registry import ENTRY_POINT_GROUP
from verl_agent.api import list_envs, make_env
from verl_agent.commands.cli import app

BROKEN = """
from verl_agent.agents.plain import Act

class Silent(Act):
    def instruction(self):
        return "Answer with your action."

class Unexplained(Act):
    @property
    def format_error(self):
        return "That was wrong."

class Hasty(Act):
    def parse_reply(self, reply):
        return reply.split()[0]

class Lists(Act):
    def parse_reply(self, reply):
        return [super().parse_reply(reply)]

class Talkative(Act):
    def render_reply(self, actions, turn):
        return super().render_reply(actions, turn) + " now"

class Deaf(Act):
    def observe(self, step, action, turn):
        return {"role": "user", "content": "Go on."}

class Forgetful(Act):
    def build_prompt(self, messages):
        return [{"role": "user", "content": self.instruction()}]
"""
FAILS = {
    "Silent": "line: what the instructions show parses: parse_reply(instruction()) is None",
    "Unexplained": "line: refused replies are explained: format_error is 'That was wrong.'",
    "Hasty": "line: replies may hold any text: parse_reply('') raised IndexError",
    "Lists": "line: replies may hold any text: parse_reply() returned [None]",
    "Talkative": "line: demonstrations parse: parse_reply('Action: go north now') returned 'go north now'",
    "Deaf": "line: observations reach the model: observe() returned",
    "Forgetful": "line: what the instructions show parses: build_prompt() lost 'You walk.'",
}


@pytest.fixture(scope="module", autouse=True)
def broken_agents(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broken_agents")
    write_metadata(folder, "check-agents", {ENTRY_POINT_GROUP: {name: f"check_agents:{name}" for name in FAILS}})
    folder.joinpath("check_agents.py").write_text(BROKEN)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


@pytest.mark.parametrize("name", ["act", "react", "think", "plan", "tools", "raw", "program"])
def test_an_agent_of_this_package_passes(name):
    report = check_agent(name)
    assert not report.violations, str(report)


@pytest.mark.parametrize("env", sorted(set(list_envs()) - {"http", "mcp", "openenv", "webarena", "program"}))
def test_agents_pass_with_the_format_of_each_environment(env):
    skip_without_packages(env)
    for name in ("react", "raw"):
        report = check_agent(name, formats=[make_env(env).action_format])
        assert not report.violations, str(report)


@pytest.mark.parametrize("name", FAILS)
def test_the_check_finds_what_is_wrong(name):
    report = check_agent(name)
    assert any(str(violation).startswith(FAILS[name]) for violation in report.violations), str(report)


def test_the_command_reports_and_fails():
    result = CliRunner().invoke(app, ["check-agent", "Unexplained", "--env", "guess_number"])
    assert (result.exit_code, "1 to change" in result.output) == (1, True)
    result = CliRunner().invoke(app, ["check-agent", "reakt"])
    assert result.exit_code != 0 and "agent.name='reakt' is not registered. Did you mean 'react'?" in result.output
