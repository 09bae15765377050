"""Episodes for judges, and settings of a judge on the server of a fake model."""

import asyncio
import json
from pathlib import Path

from tests.support.model_server import ModelServer
from verl_agent.envs.judge.judge import Judge
from verl_agent.envs.judge.settings import JudgeSettings
from verl_agent.sections import section
from verl_agent.types import Episode, Reply, StepResult, StopReason, TaskItem, Turn

CRITERIA = [
    {"name": "goal", "description": "The task is solved.", "weight": 0.75},
    {"name": "care", "description": "No action was wasted.", "weight": 0.25},
]


def episode(*replies: str, reward: float = 0.0, stop: StopReason = StopReason.TERMINATED) -> Episode:
    """Return an episode whose last step earns `reward`; a reply `|` was cut by the token limit."""
    made = Episode(TaskItem("talk", "1"), 9, [{"role": "user", "content": "Begin."}], [], stop, prompt_length=1)
    for number, reply in enumerate(replies, start=1):
        last = reward if number == len(replies) else 0.0
        step = None if reply == "|" else StepResult(f"heard {reply}", last)
        made.turns.append(Turn(Reply(reply), None if step is None else reply, step, 0.0, 0.0))
    return made


def settings(server: ModelServer, api: dict[str, object] | None = None, **values: object) -> JudgeSettings:
    """Return the settings of a judge that the server plays."""
    own = {"name": "fake", "base_url": f"{server.url}/v1", "timeout_s": 5.0, "retries": 1, **(api or {})}
    return section("judge", JudgeSettings, {"rubric": {"criteria": CRITERIA}, "api": own, **values})


def judged(judge: JudgeSettings, folder: Path, *episodes: Episode, judges: int = 1) -> list[Episode]:
    """Judge episodes at once and return them."""

    async def run() -> None:
        made = Judge(judge, folder, judges=judges, first_wait_s=0.01)
        try:
            await asyncio.gather(*map(made.judge, episodes))
        finally:
            await made.close()

    asyncio.run(run())
    return list(episodes)


def verdict(goal: float, care: float = 10) -> str:
    """Return a verdict on `CRITERIA`."""
    return json.dumps({"goal": {"reason": "It is.", "score": goal}, "care": {"reason": "So so.", "score": care}})
