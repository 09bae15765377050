"""Episode that waits for the test before each reply, in a thread of its own, as a run plays it."""

import asyncio
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.fakes import ITEM, plain, talk_class
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.live import LiveEpisodes, Shown
from verl_agent.rollout.policy import Policy
from verl_agent.types import Message, Reply


class HeldPolicy(Policy):
    """Policy whose next reply the test puts into a queue."""

    def __init__(self) -> None:
        self.replies: queue.Queue[str] = queue.Queue()

    async def reply(self, messages: Sequence[Message]) -> Reply:
        text = await asyncio.to_thread(self.replies.get)
        return Reply(text, tokens=1)


@contextmanager
def episode_in_play(records: Path, turns: int = 3) -> Iterator[HeldPolicy]:
    """Play an episode whose records belong into a folder; yield its policy. It ends after some turns, or the block."""
    policy = HeldPolicy()
    shown = Shown(LiveEpisodes(records), {"purpose": "train", "split": "train", "step": 7, "sample": 2})

    def play() -> None:
        asyncio.run(play_episode(ITEM, talk_class()(turns=turns), plain(), policy, EpisodeLimits(turns), shown))

    thread = threading.Thread(target=play)
    thread.start()
    try:
        yield policy
    finally:
        for _ in range(turns):
            policy.replies.put("the end")
        thread.join()
