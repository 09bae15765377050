"""Seat of a person who attends one episode from another process."""

import asyncio
import queue
from typing import Any

from typing_extensions import override

from verl_agent.rollout.candidates import CandidatePolicy
from verl_agent.rollout.oversight import Proposal
from verl_agent.rollout.person import Person, PersonAnswer
from verl_agent.runs.terminal_person import prompt_of, question_text

MAX_HISTORY = 40
"""Messages of the history of an episode that a page shows, the last ones."""
MAX_MESSAGE, MAX_PROMPT = 2_000, 50_000
"""Characters of each of them, and of the goal and the rules."""


class SeatLeftError(Exception):
    """The person left before the question was answered."""


class Seat(Person):
    """Person at another terminal or in a browser.

    The connection's thread takes `messages`; the event loop calls the methods.
    """

    def __init__(self, name: str, copilot: CandidatePolicy | None = None, alone: bool = False) -> None:
        super().__init__(alone, copilot)
        self.name = name
        self.messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        """Questions for the person as JSON values; the last message has the key `ended`."""
        self._answer: asyncio.Future[PersonAnswer] | None = None
        self._told = False

    @override
    async def ask(self, proposal: Proposal, refusal: str) -> PersonAnswer:
        """Send the question, and wait for the person's decision."""
        self._answer = asyncio.get_running_loop().create_future()
        text = question_text(proposal, self.commands(proposal), told=self._told)
        self._told = True
        self.messages.put({"question": text, "refusal": refusal} | self._describe(proposal))
        try:
            return await self._answer
        finally:
            self._answer = None

    def _describe(self, proposal: Proposal) -> dict[str, Any]:
        """Return the parts of a question, for a page that lays them out by itself."""
        episode, reply = proposal.episode, proposal.reply
        past = episode.messages[episode.prompt_length : -1]
        return {
            "turn": f"{episode.item.id}, turn {len(episode.turns) + 1} of {episode.max_turns}",
            "prompt": prompt_of(episode)[:MAX_PROMPT],
            "history": [
                {"role": message["role"], "content": message["content"][:MAX_MESSAGE]}
                for message in past[-MAX_HISTORY:]
            ],
            "earlier": len(past[:-MAX_HISTORY]),
            "observation": proposal.observation,
            "reply": None if reply is None else reply.text,
            "action": proposal.action,
            "candidates": [{"action": one.action, "share": one.share} for one in self.candidates(proposal)],
        }

    def answer(self, answer: PersonAnswer) -> None:
        """Pass on the answer to the last question; without one it is ignored."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def dismiss(self, reason: str) -> None:
        """End the seat."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(SeatLeftError())
        self.messages.put({"ended": reason})
