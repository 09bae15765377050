"""Episodes of demonstrations, played over HTTP as AgentGym's clients play."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.support.scripts import actions
from tests.support.wire_client import Script, Session
from verl_agent.envs.registry import make_env

CONCURRENCY = 16


@dataclass(frozen=True, slots=True)
class OracleResult:
    """Result of the episodes of demonstrations.

    Attributes:
        solved: ids of the solved items.
        failed: ids of the other items, each with its score or the reason why it was not played.
    """

    solved: Sequence[str]
    failed: Sequence[str]

    @property
    def rate(self) -> float:
        return len(self.solved) / (len(self.solved) + len(self.failed))

    def __str__(self) -> str:
        total = len(self.solved) + len(self.failed)
        return f"{len(self.solved)}/{total} solved" + "".join(f"; {item}" for item in self.failed[:10])


def try_oracle(env: str, split: str, url: str, indices: Iterable[int] | None = None) -> OracleResult:
    """Play the demonstrations of `env` on a server."""
    session = make_env(env)
    items = session.tasks(split)
    chosen = range(len(items)) if indices is None else indices
    scripts = [Script(index, actions(session, items[index])) for index in chosen]
    scores = asyncio.run(_play_all(url, [script for script in scripts if script.actions]))
    solved = [items[index].id for index, score in scores.items() if score >= session.success_reward]
    failed = [f"{items[index].id} {score}" for index, score in scores.items() if score < session.success_reward]
    failed += [f"{items[script.item].id} has no demonstration" for script in scripts if not script.actions]
    return OracleResult(solved, failed)


async def _play_all(url: str, scripts: Sequence[Script]) -> dict[int, float]:
    """Return the score of each script's item; 0 if the episode did not end."""
    scores: dict[int, float] = {}
    left = iter(scripts)

    async def play() -> None:
        session = await Session.open(url)
        for script in left:
            await session.reset(script.item)
            answers = [await session.step(action) for action in script.actions]
            scores[script.item] = answers[-1]["score"] if answers[-1]["done"] else 0.0
        await session.close()

    await asyncio.gather(*(play() for _ in range(min(CONCURRENCY, len(scripts)))))
    return scores
