"""Test the targets of actions, as approval policies match them."""

from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.action_target import named_action
from verl_agent.envs.tools import Tool, arguments

GET = Tool(
    "get", "Fetch an item.", arguments(number={"type": "integer"}, item={"type": "string"}), "get {number} {item}"
)


def test_a_whole_number_written_as_a_decimal_names_its_tool():
    assert named_action(LineFormat((GET,)), "get 1.0 oak log").name == "get"
    assert GET.parse("get 1e2 oak log") == {"number": 100, "item": "oak log"}
