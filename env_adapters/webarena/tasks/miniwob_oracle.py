"""What the easier pages of MiniWoB ask for in words of theirs, as scripts for `oracle.py`.

A page is played by the first rule that fits what it says; only pages whose sentences say all are here.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from env_adapters.webarena.tasks.miniwob_pages import words
from env_adapters.webarena.tasks.oracle import Oracle, OracleError, nodes

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
"""What a page says, and what is done then; braces stand for the parts of the sentence."""
SOLVED = frozenset(
    words(
        "click-button click-button-sequence click-dialog click-dialog-2 click-option click-tab click-test "
        "click-test-2 click-test-transfer enter-password enter-text enter-text-dynamic focus-text focus-text-2 "
        "login-user"
    )
)
"""The pages that these rules play."""


def script_for(observation: str) -> list[str]:
    """The script for a page as it is first seen.

    Raises:
        OracleError: no rule fits what it says.
    """
    said = " ".join(node.name for node in nodes(observation) if node.role == "StaticText")
    for rule, lines in RULES.items():
        found = re.match(rule, said)
        if found:
            return [*(line.format(*found.groups()) for line in lines), "stop []"]
    raise OracleError(f"no rule fits a page that says {said[:200]!r}.")


def page_oracle() -> Callable[[str], str]:
    """Plays one page, whichever it is."""
    begun: list[Oracle] = []

    def act(observation: str) -> str:
        if not begun:
            begun.append(Oracle(script_for(observation), {}))
        return begun[0].act(observation)

    return act
