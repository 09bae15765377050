"""Match of several policies in an arena: each seat is a session, so the loop plays and records it as any episode."""

import asyncio
import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from verl_agent.envs.arena import LEAVE, MatchView, as_match, seat_result
from verl_agent.envs.session import Session, in_background
from verl_agent.errors import EnvError, EpisodeEndError
from verl_agent.types import Episode, Message, StepResult, TaskItem


class Match:
    """Match between the sessions of its seats, which wait for one another.

    It begins when the first seat resets. A seat that leaves before the end, at a limit of its episode, ends the match
    for all; `Arena.forfeit` decides the results. An environment error ends it too, and no seat's episode is valid then.

    Args:
        session: session of the arena.
        item: task, without a seat.
        name: name of the match, which the episodes of its seats share.
        seats: numbers of the seats that take part.
    """

    def __init__(self, session: Session, item: TaskItem, name: str, seats: Collection[int]) -> None:
        self._session, self._item, self.name = session, as_match(item, name), name
        self._present = set(seats)
        self._actions: dict[int, str] = {}
        self._invalid: set[int] = set()  # seats that have not yet read that their last action was not possible
        self._view: MatchView | None = None
        self._error: EpisodeEndError | None = None
        self._changed = asyncio.Condition()
        self._leaving: set[asyncio.Task[None]] = set()
        self.success_reward = session.success_reward

    async def begin(self, seat: int) -> str:
        """Return the first text of a seat, as soon as it is to move."""
        async with self._changed:
            if self._view is None and self._error is None:
                await self._update(None)
            view = await self._wait_for(seat)
            if view.results is not None:
                raise EnvError("the match ended before this seat was to move.")
            return view.texts[seat]

    async def act(self, seat: int, action: str) -> StepResult:
        """Carry out a seat's action, and return the answer as soon as the seat is to move again or the match ends."""
        async with self._changed:
            if self._view is not None and self._view.results is None and self._error is None:
                self._actions[seat] = action
                if self._actions.keys() == self._view.texts.keys():
                    actions, self._actions = self._actions, {}
                    await self._update(json.dumps(actions))
            view = replace(await self._wait_for(seat), invalid={seat} & self._invalid)
            self._invalid.discard(seat)
            return seat_result(view, seat)

    async def fail(self, reason: str) -> None:
        """End the match with an error, because a policy that is not trained cannot play on."""
        async with self._changed:
            self._error = self._error or EnvError(reason)
            self._changed.notify_all()

    async def leave(self, seat: int) -> None:
        """End the part of a seat. The last one closes the session of the arena."""
        await asyncio.shield(in_background(self._leave(seat), self._leaving))  # goes on if the caller gives up waiting

    async def settle(self, seat: int, episode: Episode) -> None:
        """Give an episode that a limit ended the result of its seat, with its last turn."""
        if self._leaving:
            await asyncio.wait(self._leaving)
        ended = episode.turns and episode.turns[-1].step is not None and episode.turns[-1].step.terminated
        if not episode.stop.is_limit or not episode.turns or ended or self._view is None or self._view.results is None:
            return
        last, result = episode.turns[-1], float(self._view.results[seat])
        if last.step is None:
            episode.messages.append({"role": "user", "content": "The match has ended."})
        step = last.step or StepResult("The match has ended.")
        episode.turns[-1] = replace(last, step=replace(step, reward=step.reward + result))

    async def _leave(self, seat: int) -> None:
        async with self._changed:
            self._present.discard(seat)
            running = self._view is not None and self._view.results is None and self._error is None
            if running and self._present:
                with suppress(EpisodeEndError):  # the seats that wait raise it
                    await self._update(json.dumps({LEAVE: seat}))
            elif running and self._view is not None:
                self._error = EnvError("all seats have left.")
            if not self._present:
                await self._session.close()

    async def _update(self, action: str | None) -> None:
        """Call the arena, and wake the seats that wait; the seat that calls raises the error itself."""
        try:
            if action is None:
                self._view = MatchView.from_json((await self._session.reset(self._item))[-1]["content"])
            else:
                self._view = MatchView.from_json((await self._session.step(action)).observation)
                self._invalid |= set(self._view.invalid)
            absent = self._view.texts.keys() - self._present
            if self._view.results is None and absent:  # it left before the match began
                await self._update(json.dumps({LEAVE: min(absent)}))
        except EpisodeEndError as error:
            self._error = EnvError(f"the match has ended: {error}")
            raise
        except BaseException as error:
            self._error = EnvError(f"the match has ended: {error!r:.200}")
            raise
        finally:
            self._changed.notify_all()

    async def _wait_for(self, seat: int) -> MatchView:
        def is_next() -> bool:
            view = self._view
            over = self._error is not None or (view is not None and view.results is not None)
            return over or (view is not None and seat in view.texts and seat not in self._actions)

        await self._changed.wait_for(is_next)
        if self._error is not None:
            raise self._error
        assert self._view is not None
        return self._view


class SeatSession:
    """`Session` of one seat of a match."""

    deterministic = False  # a seat cannot be replayed alone

    def __init__(self, match: Match, seat: int) -> None:
        self._match, self._seat = match, seat
        self.success_reward = match.success_reward

    async def reset(self, item: TaskItem) -> list[Message]:
        """Wait until the seat is to move."""
        return [{"role": "user", "content": await self._match.begin(self._seat)}]

    async def step(self, action: str) -> StepResult:
        """Move, and wait until the seat is to move again."""
        return await self._match.act(self._seat, action)

    async def close(self) -> None:
        """Leave the match."""
        await self._match.leave(self._seat)


class HeldSeat(SeatSession):
    """Seat of a policy that is not trained: who plays it leaves the match for it, after an error has ended that."""

    async def close(self) -> None:
        """Stay in the match."""
