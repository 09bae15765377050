"""Seat of a person who decides on an episode from another terminal or from a browser."""

import asyncio
import itertools
import queue
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from typing_extensions import override

from verl_agent.oversight.base import Decision, Proposal
from verl_agent.oversight.person import Person
from verl_agent.oversight.question import Question

_numbers = itertools.count(1)  # of the questions of all seats


class SeatLeftError(Exception):
    """The person left before the question was answered."""


class Seat(Person):
    """Person at another terminal or in a browser. Only the event loop of the run calls the methods.

    Args:
        name: name of the person, for others.
        wake: called after each new message.
    """

    def __init__(self, name: str, wake: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.name, self._wake = name, wake
        self.messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        """Questions and notices for the person as JSON values, for any thread; the last one has the key `ended`."""
        self._answer: asyncio.Future[Decision] | None = None
        self._number = 0

    @override
    async def ask(self, proposal: Proposal, refusal: str) -> Decision:
        """Send the question with its number, and wait for the person's decision."""
        self._answer, self._number = asyncio.get_running_loop().create_future(), next(_numbers)
        question = asdict(Question.about(proposal, self.commands(proposal)))
        self._send({"question": question, "refusal": refusal, "number": self._number})
        try:
            return await self._answer
        finally:
            self._answer = None

    def answer(self, answer: Decision, number: object) -> None:
        """Pass on the answer to the question with a number; else tell the person that it has no effect."""
        if self._answer is None or self._answer.done():
            self.notify("Nothing is asked at the moment, so this answer has no effect.")
        elif number != self._number:
            self.notify("This answer was to an earlier question, so it has no effect. Answer the present one.")
        else:
            self._answer.set_result(answer)

    def notify(self, text: str) -> None:
        """Tell the person something that needs no answer."""
        self._send({"notice": text})

    def dismiss(self, reason: str) -> None:
        """End the seat."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(SeatLeftError())
        self._send({"ended": reason})

    def _send(self, message: dict[str, Any]) -> None:
        self.messages.put(message)
        self._wake()
