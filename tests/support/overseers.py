"""People as fakes: answers from a script, and rules from a text."""

import asyncio
from collections.abc import Iterable

from verl_agent.oversight.base import Decision, Proposal
from verl_agent.oversight.person import Person, read_line


class ScriptedPerson(Person):
    """Person who types given lines, see `read_line`; `...` waits forever."""

    def __init__(self, lines: Iterable[str]) -> None:
        super().__init__()
        self._lines = iter(lines)
        self.asked: list[tuple[str | None, str]] = []
        """Proposed action and refusal of each question."""

    async def ask(self, proposal: Proposal, refusal: str) -> Decision:
        proposal.on_shown()
        self.asked.append((proposal.action, refusal))
        line = next(self._lines)
        if line == "...":
            await asyncio.Future()
        return read_line(line)
