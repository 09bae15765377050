"""Test the targets of actions, as approval policies match them."""

from verl_agent.envs.action_format import LineFormat, Parameter, Tool
from verl_agent.envs.action_target import named_action

GET = Tool("get", "Fetch an item.", "get {number} {item}", (Parameter("number", "integer"), Parameter("item")))


def test_a_whole_number_written_as_a_decimal_names_its_tool():
    assert named_action(LineFormat((GET,)), "get 1.0 oak log").name == "get"
    assert GET.parse("get 1e2 oak log") == {"number": 100, "item": "oak log"}
