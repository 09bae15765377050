"""`check-env` and `check-agent` on environments of tools: what is wrong is named, and good ones pass."""

import re
import sys
import threading

import pytest
from typer.testing import CliRunner

import verl_agent as va
from env_adapters.textcraft.adapter import TextCraft
from tests.support.packages import write_metadata
from tests.support.tool_envs import Garden
from verl_agent.agents.check import actions_of, check_agent
from verl_agent.commands.cli import app
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.registry import ENTRY_POINT_GROUP
from verl_agent.envs.testing.check import check_adapter
from verl_agent.envs.tools import Tool, arguments


class Good(Garden):
    """A garden whose functions answer every call."""

    def water(self, litres: float) -> str:
        """Water the garden."""
        return f"{litres} l"

    def dig(self, depth: int) -> str:
        """Dig a hole."""
        return f"{depth} cm"


class Undescribed(Good):
    @va.tool
    def mow(self) -> str:
        return "mown"


class Raising(Good):
    def dig(self, depth: int) -> str:
        """Dig a hole."""
        return f"{100 // depth} cm"


class Silent(Good):
    @va.tool
    def wait(self) -> None:
        """Wait."""


class Differing(Good):
    tools = (Tool("mow", "Mow.", arguments(hight={"type": "integer"}), function=lambda height: str(height)),)


class Lines(Good):
    def demonstration(self, item):
        return [va.DemoAction("plant rose"), *super().demonstration(item)]


class Refused(Good):
    def demonstration(self, item):
        return [va.DemoAction(va.ToolCall("plant", {"plant": "rose"})), *super().demonstration(item)]


class Untold(TextCraft):
    action_format = LineFormat(TextCraft.action_format.tools[1:])


class Endless(Good):
    released = threading.Event()

    def dig(self, depth: int) -> str:
        """Dig a hole."""
        if abs(depth) > 10:
            self.released.wait()
        return "deep"


def test_a_call_that_takes_too_long_is_named_with_its_arguments():
    try:
        report = str(check_adapter(Endless, items=1, budget_s=60.0, timeout_s=5.0))
    finally:
        Endless.released.set()
    assert re.search(r'step\(\{"name": "dig", "arguments": \{"depth": -?\d+\}\}\) took over 5 s', report), report
    assert "an integer without bounds" in report


def report_of(adapter: type[va.EnvAdapter]) -> str:
    return str(check_adapter(adapter, items=1, budget_s=60.0))


def test_a_good_environment_of_tools_passes_and_silent_functions_are_noted():
    assert "FAIL" not in report_of(Good)
    report = report_of(Silent)
    assert "FAIL" not in report and "nothing is returned by wait" in report


@pytest.mark.parametrize(
    ("adapter", "part"),
    [
        (Undescribed, "tool 'mow' has no description"),
        (Raising, "dig({'depth': 0}) failed: ZeroDivisionError"),
        (Differing, "tool 'mow' has a schema that differs from its function in height, hight"),
        (Lines, "has the action 'plant rose', which is no call"),
        (Refused, "has a call that is refused: plant was not called: spot is missing"),
        (Untold, "which no tool makes"),
    ],
)
def test_what_is_wrong_with_a_tool_is_named(adapter, part):
    assert part in report_of(adapter)


@pytest.mark.parametrize("name", ["tools", "react", "act", "think", "plan"])
@pytest.mark.parametrize("env", [Good(), TextCraft()])
def test_an_agent_is_checked_with_the_actions_of_the_environment(name, env):
    report = check_agent(name, formats=[env.action_format], actions=actions_of(env))
    assert not report.violations, str(report)


def test_an_agent_that_cannot_write_an_action_of_the_environment_fails():
    report = check_agent("tools", formats=[Untold.action_format], actions=actions_of(TextCraft()))
    assert any("no function makes the action 'get " in str(violation) for violation in report.violations)


def test_the_command_takes_the_actions_of_the_environment(tmp_path):
    write_metadata(tmp_path, "garden", {ENTRY_POINT_GROUP: {"garden": "tests.support.tool_envs:Garden"}})
    sys.path.insert(0, str(tmp_path))
    try:
        ran = [CliRunner().invoke(app, ["check-agent", "tools", "--env", env]) for env in ("garden", "textcraft")]
    finally:
        sys.path.remove(str(tmp_path))
    assert [one.exit_code for one in ran] == [0, 0], [one.output for one in ran]
