"""Oracle of the easier pages of MiniWoB, whose instruction on the page determines the solution.

The first rule that matches the instruction gives the script for `oracle.py`.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from env_adapters.webarena.tasks.oracle import OracleError, ScriptOracle, parse_nodes

SUBMIT = 'click [button "Submit"]'
RULES: Mapping[str, Sequence[str]] = {
    r"Click the button\.": ['click [button "Click Me!"]'],
    r"Click button (\w+)\.": ['click [button "{0}"]'],
    r"Click button (\w+), then click button (\w+)\.": ['click [button "{0}"]', 'click [button "{1}"]'],
    r'Click on the "(.+?)" button\.': ['click [button "{0}"]'],
    r"Click on (Tab #\d)\.": ['click [link "{0}"]'],
    r'Close the dialog box by clicking the "x"\.': ['click [button "Close"]'],
    r'Click the button in the dialog box labeled "x"\.': ['click [button "Close"]'],
    r'Click the button in the dialog box labeled "(.+?)"\.': ['click [button "{0}"]'],
    r"Focus into the textbox\.": ['click [textbox ""]'],
    r"Focus into the (\d)\w\w input textbox\.": ['click [textbox "" #{0}]'],
    r"Select (\w+) and click Submit\.": ['click [radio "{0}"]', SUBMIT],
    r'Enter "\s*(.+?)\s*" into the text field and press Submit\.': ['type [textbox ""] [{0}] [0]', SUBMIT],
    r'Enter the password "\s*(.+?)\s*" into both text fields and press submit\.': [
        'type [textbox "" #1] [{0}] [0]',
        'type [textbox "" #2] [{0}] [0]',
        SUBMIT,
    ],
    r'Enter the username "(.+?)" and the password "(.+?)" into the text fields and press login\.': [
        'type [textbox "" #1] [{0}] [0]',
        'type [textbox "" #2] [{1}] [0]',
        'click [button "Login"]',
    ],
}
"""Script for each instruction; braces are replaced by the groups of the pattern."""
_SOLVED = (
    "click-button click-button-sequence click-dialog click-dialog-2 click-option click-tab click-test "
    "click-test-2 click-test-transfer enter-password enter-text enter-text-dynamic focus-text focus-text-2 "
    "login-user"
)
SOLVED = frozenset(_SOLVED.split())
"""Pages that these rules solve."""


def script_for(observation: str) -> list[str]:
    """Return the script for the first observation of a page."""
    instruction = " ".join(node.name for node in parse_nodes(observation) if node.role == "StaticText")
    for pattern, lines in RULES.items():
        match = re.match(pattern, instruction)
        if match:
            return [*(line.format(*match.groups()) for line in lines), "stop []"]
    raise OracleError(f"no rule matches the page's instruction {instruction[:200]!r}.")


def page_oracle() -> Callable[[str], str]:
    """Return an oracle for one episode on any solvable page."""
    oracle: ScriptOracle | None = None

    def act(observation: str) -> str:
        nonlocal oracle
        if oracle is None:
            oracle = ScriptOracle(script_for(observation), {})
        return oracle.act(observation)

    return act
