"""Play the oracles' episodes over HTTP, the actions alone, as AgentGym's clients would."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.support.scripts import actions
from tests.support.wire_client import Connection, Script, Session
from verl_agent.envs.registry import make_env

AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of the oracle's episodes.

    Attributes:
        solved: ids of the items that it solved.
        failed: ids of those that it did not, with the score, or why it was not played.
    """

    solved: Sequence[str]
    failed: Sequence[str]

    @property
    def rate(self) -> float:
        """Part that is solved."""
        return len(self.solved) / (len(self.solved) + len(self.failed))

    def __str__(self) -> str:
        total = len(self.solved) + len(self.failed)
        return f"{len(self.solved)}/{total} solved" + "".join(f"; {one}" for one in self.failed[:10])


def try_oracle(env: str, split: str, url: str, places: Iterable[int] | None = None) -> Tried:
    """Let the oracle of `env` play on a server.

    Args:
        env: registered name of the environment.
        split: in which the server counts.
        url: of the server.
        places: which items; None for all.
    """
    session = make_env(env)
    items = session.tasks(split)
    chosen = range(len(items)) if places is None else places
    scripts = [Script(place, actions(session, items[place])) for place in chosen]
    scores = asyncio.run(_play_all(url, [script for script in scripts if script.actions]))
    solved = [items[place].id for place, score in scores.items() if score >= session.success_reward]
    failed = [f"{items[place].id} {score}" for place, score in scores.items() if score < session.success_reward]
    failed += [f"{items[script.item].id} not planned" for script in scripts if not script.actions]
    return Tried(solved, failed)


async def _play_all(url: str, scripts: Sequence[Script]) -> dict[int, float]:
    """The score of each script's item, 0 where the episode did not end."""
    scores: dict[int, float] = {}
    left = iter(scripts)

    async def play() -> None:
        session = Session(await Connection.to(url))
        await session.create()
        for script in left:
            await session.reset(script.item)
            answers = [await session.step(action) for action in script.actions]
            scores[script.item] = answers[-1]["score"] if answers[-1]["done"] else 0.0
        await session.close()
        session.connection.close()

    await asyncio.gather(*(play() for _ in range(min(AT_ONCE, len(scripts)))))
    return scores
