"""Turn limit of a group that grows while no episode of the group has solved the task (`horizon.deepen`)."""

import asyncio
from collections.abc import Sequence

from verl_agent.returns import reaches
from verl_agent.types import Episode


class GroupLimit:
    """Turn limit that the episodes of one group share.

    An episode at the limit waits in its live session until each episode of the group has ended or waits. If none has
    solved the task, the limit grows and the waiting episodes go on; else they end. No turn is played twice.

    Args:
        stages: limits, growing.
        episodes: number of episodes of the group.
    """

    def __init__(self, stages: Sequence[int], episodes: int) -> None:
        self._stages, self._at = stages, 0
        self._playing, self._solved = episodes, False
        self._waiting: list[asyncio.Future[None]] = []
        self._final = asyncio.Event()

    @property
    def limit(self) -> int:
        """Present turn limit."""
        return self._stages[self._at]

    async def at_limit(self, episode: Episode) -> int:
        """Wait at the limit of an episode, and return the limit from then on; the episode ends if it is the same."""
        if episode.max_turns >= self.limit:  # else it began anew after an environment error
            self._solved = self._solved or reaches(episode.rewards, episode.success_reward)
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            self._playing -= 1
            self._decide()
            try:
                await waiting
            finally:
                if waiting in self._waiting:  # cancelled, so that `end` follows
                    self._waiting.remove(waiting)
                    self._playing += 1
        return self.limit

    def end(self, solved: bool) -> None:
        """Note that one episode of the group has ended, for whatever reason."""
        self._playing -= 1
        self._solved = self._solved or solved
        self._decide()

    async def final(self) -> int:
        """Return the limit of the group after the end of its last episode."""
        await self._final.wait()
        return self.limit

    def _decide(self) -> None:
        """If no episode plays, let those that wait go on to the next limit, or end."""
        if self._playing > 0:
            return
        going_on, self._waiting = self._waiting, []
        if not going_on:
            self._final.set()
            return
        if not self._solved and self._at + 1 < len(self._stages):
            self._at += 1
        self._playing = len(going_on)
        for waiting in going_on:
            if not waiting.done():
                waiting.set_result(None)


class GroupLimits:
    """Limits of the open groups of a worker process, which plays all episodes of a group.

    Args: see `GroupLimit`.
    """

    def __init__(self, stages: Sequence[int], episodes: int) -> None:
        self._stages, self._episodes = stages, episodes
        self._open: dict[str, tuple[GroupLimit, int]] = {}

    def join(self, group: str) -> GroupLimit:
        """Return the limit of a group for one more of its episodes."""
        limit, missing = self._open.pop(group, (GroupLimit(self._stages, self._episodes), self._episodes))
        if missing > 1:
            self._open[group] = limit, missing - 1
        return limit
