"""State of a controlled run: its episodes, paused or not, and the people who attend them."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from verl_agent.errors import ConfigError, OperatorEndError
from verl_agent.oversight.base import Decision, Overseer, Proposal
from verl_agent.oversight.seat import Seat, SeatLeftError
from verl_agent.types import Episode

COMMANDS = ("status", "pause", "resume", "step", "attend", "end-episode", "end")
"""Commands of a controlled run."""


@dataclass(eq=False, slots=True)
class LiveEpisode:
    """Episode that is being played.

    Attributes:
        limit: timeout that ends the episode when a person asks for it.
        paused: True if its next action waits for `resume` or `step`.
        paused_by: name of the person who paused it.
        steps: number of actions that may pass although it is paused.
        asked: True while the overseer behind the control decides, such as the person at the run's terminal.
        waits: True while an action waits for `resume`, for `step` or for a decision.
    """

    number: int
    episode: Episode
    limit: asyncio.Timeout
    paused: bool = False
    paused_by: str = ""
    steps: int = 0
    ending: str = ""
    seat: Seat | None = None
    asked: bool = False
    waits: bool = False

    def describe(self, run_paused: bool) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "episode": self.number,
            "task": self.episode.item.id,
            "turn": len(self.episode.turns) + 1,
            "paused": self.paused or run_paused,
            "waits": self.waits,
            "attended_by": self.seat.name if self.seat else "",
        }


def sender_of(command: Mapping[str, Any]) -> str:
    """Return the name of the person who sent a command."""
    return str(command.get("name") or "a person")


class RunControl(Overseer):
    """Overseer that a person controls while the run goes on. Only its event loop calls it, except for `stopped`.

    An episode waits between a proposed action and the environment; a new one waits before it begins.

    Args:
        then: overseer of episodes that nobody attends, such as an approval policy.
        attended: every turn waits until a person attends its episode.
        planned: number of episodes of the whole run, which `status` tells; 0 if it is unknown.
    """

    def __init__(self, then: Overseer | None = None, attended: bool = False, planned: int = 0) -> None:
        self.stopped = False
        """True from the moment at which the run is ended: no further action and no further episode passes."""
        self.facts: Callable[[], Mapping[str, Any]] = dict
        """Returns further JSON values for `status`."""
        self._then = then or Overseer()
        self._attended, self._planned = attended, planned
        self._paused, self._paused_by = False, ""
        self._live: dict[int, LiveEpisode] = {}  # by the identity of the episode
        self._numbers = itertools.count(1)
        self._changed: asyncio.Future[None] | None = None

    @override
    @asynccontextmanager
    async def watch(self, episode: Episode) -> AsyncIterator[None]:
        limit = asyncio.timeout(None)
        live = self._live[id(episode)] = LiveEpisode(next(self._numbers), episode, limit)
        try:
            async with limit:
                await self._wait_while(lambda: self._paused or self.stopped)
                async with self._then.watch(episode):
                    yield
        except TimeoutError:
            if not (limit.expired() and live.ending):
                raise
            raise OperatorEndError(live.ending) from None
        finally:
            del self._live[id(episode)]
            if live.seat:
                live.seat.dismiss("the episode has ended.")

    @override
    async def decide(self, proposal: Proposal) -> Decision | None:
        """A person who attends the episode while its action is held decides on this action."""
        live = self._live[id(proposal.episode)]
        while True:
            seat, decision = await self._ask(live, proposal)
            unasked = decision is None and proposal.reply is None  # the policy writes first
            if unasked or await self._pass(live, seat):
                return decision

    def handle(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a command of a person, and return the state of the run.

        Raises:
            ConfigError: the command does not suit the state.
        """
        name, number = command["command"], command.get("episode")
        if name == "end":  # called without the event loop, which may hang
            self.stopped = True
            return {"ended": True}
        chosen = list(self._live.values()) if number is None else [self.find(number)]
        if name == "end-episode":
            self._end(self.find(number), str(command.get("reason") or f"{sender_of(command)} ended the episode."))
        elif name == "step":
            waiting = [live for live in chosen if live.paused or self._paused]
            if not waiting:
                raise ConfigError("nothing is paused, so there is no step to take. Pause the run or the episode first.")
            for live in waiting:
                live.steps = 1
        elif name in ("pause", "resume"):
            if number is not None and name == "resume" and self._paused:
                raise ConfigError("the whole run is paused. Resume it without the number of an episode, or use step.")
            held = {live for live in chosen if self._describe_pause(live)}
            if number is None:
                self._paused, self._paused_by = name == "pause", sender_of(command)
            for live in chosen:
                live.paused, live.paused_by = number is not None and name == "pause", sender_of(command)
                live.steps = 0
                if live.seat and (pause := self._describe_pause(live)):
                    live.seat.notify(pause)
                elif live.seat and live in held:
                    live.seat.notify(f"Resumed by {sender_of(command)}.")
        elif name != "status":
            raise ConfigError(f"{name!r} is no command. Allowed: {', '.join(COMMANDS)}.")
        self._announce()
        return {
            "paused": self._paused,
            "paused_by": self._paused_by if self._paused else "",
            "planned": self._planned,
            **self.facts(),
            "episodes": [live.describe(self._paused) for live in self._live.values()],
        }

    def attend(self, number: object, name: str, wake: Callable[[], object] = lambda: None) -> Seat:
        """Give an episode to a person, who decides on all further actions.

        wake: see `Seat`.

        Raises:
            ConfigError: the episode is not being played, or another person has it.
        """
        live = self.find(number)
        if live.seat is not None:
            raise ConfigError(f"episode {live.number} is attended by {live.seat.name}. One person decides at a time.")
        if live.asked:
            whose = "of the person at the run's terminal, or of an overseer"
            raise ConfigError(f"episode {live.number} waits for the decision {whose}. Try again after it.")
        live.seat, live.paused = Seat(name, wake), False
        if pause := self._describe_pause(live):
            live.seat.notify(pause)
        self._announce()
        return live.seat

    def leave(self, seat: Seat) -> None:
        """Take the episode from a person who left; its next action waits for `resume` or for another person."""
        for live in self._live.values():
            if live.seat is seat:
                live.seat, live.paused, live.paused_by = None, True, seat.name
                self._announce()
        seat.dismiss("you left.")

    def _describe_pause(self, live: LiveEpisode) -> str:
        """Return who paused the run or an episode, for the person who attends it; "" if neither is paused."""
        if not (self._paused or live.paused):
            return ""
        paused, by = ("run", self._paused_by) if self._paused else ("episode", live.paused_by)
        return (
            f"The {paused} is paused by {by}. What you decide is carried out when the {paused} is resumed (command "
            "resume), or for one action (command step)."
        )

    def find(self, number: object) -> LiveEpisode:
        """Return an episode by its number."""
        for live in self._live.values():
            if live.number == number:
                return live
        running = ", ".join(str(live.number) for live in self._live.values()) or "none"
        raise ConfigError(f"episode {number} is not being played. Running: {running}.")

    def _end(self, live: LiveEpisode, reason: str) -> None:
        if not live.ending:  # else the end is taking effect
            live.ending = reason
            live.limit.reschedule(asyncio.get_running_loop().time())

    async def _ask(self, live: LiveEpisode, proposal: Proposal) -> tuple[Seat | None, Decision | None]:
        """Ask the person who attends the episode, or else the overseer behind this one.

        Returns:
            The seat of the person who decided, or None, and the decision.
        """
        live.waits = True
        try:
            while True:
                await self._wait_while(lambda: self._attended and live.seat is None)
                seat = live.seat
                if seat is None:
                    live.asked = True
                    return None, await self._then.decide(proposal)
                try:
                    return seat, await seat.decide(proposal)
                except SeatLeftError:
                    await self._wait_while(lambda: live.seat is None and live.paused)
        finally:
            live.asked = live.waits = False

    async def _pass(self, live: LiveEpisode, decided: Seat | None) -> bool:
        """Wait until an action may pass; return False if another person than that in `decided` came to decide on it."""

        def held() -> bool:
            return (self._paused or live.paused) and not live.steps

        def other() -> bool:
            return live.seat is not None and live.seat is not decided

        live.waits = True
        if decided is not None and held():
            decided.notify(f"Your decision is kept and not carried out yet. {self._describe_pause(live)}")
        try:
            await self._wait_while(lambda: self.stopped or (held() and not other()))
            if other():
                return False
            live.steps = 0
            return True
        finally:
            live.waits = False

    async def _wait_while(self, condition: Callable[[], bool]) -> None:
        while condition():
            if self._changed is None:
                self._changed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._changed)

    def _announce(self) -> None:
        """Wake everything that waits for a change."""
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)
