"""Generator of `variations.json`: `python -m env_adapters.scienceworld.tabulate`, which takes some minutes.

The table changes only with a new release of the simulator or with other demonstrations.
"""

import asyncio
import json
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from env_adapters.scienceworld.adapter import ScienceWorld
from env_adapters.scienceworld.simulator import SimulatorSession
from env_adapters.scienceworld.tasks import COUNTED, TABLE
from verl_agent.types import TaskItem

logger = logging.getLogger(__name__)


def tabulate() -> dict[str, dict[str, Any]]:
    """Return number, official variations and (for the counted tasks) lengths of demonstrations, by task."""
    spec = find_spec("scienceworld")
    assert spec is not None and spec.origin is not None
    listed = json.loads(Path(spec.origin).with_name("tasks.json").read_text(encoding="utf-8"))
    return {entry["task_name"]: row(entry["task_id"], entry["task_name"]) for entry in listed}


def row(number: str, name: str) -> dict[str, Any]:
    """Return the row of one task."""
    world = SimulatorSession(name, 0)
    parts = {part: [min(found), max(found) + 1] for part, found in world.variations().items()}
    world.close()
    count = max(end for _, end in parts.values())
    turns = [turns_of(name, variation) for variation in range(count)] if number in COUNTED else []
    logger.info("%s %s: %d variations, %s turns", number, name, count, f"{min(turns)} to {max(turns)}" if turns else "")
    return {"number": number, "parts": parts, "turns": turns}


def turns_of(name: str, variation: int) -> int:
    """Return the number of turns that the demonstration needs to solve the task."""
    item = TaskItem("scienceworld", f"{name}:{variation}", {"task": name, "variation": variation})
    return asyncio.run(_play(item))


async def _play(item: TaskItem) -> int:
    env = ScienceWorld()
    await env.reset(item)
    try:
        for turn, move in enumerate(env.demonstration(item), start=1):
            if (await env.step(str(move.action))).terminated:
                return turn
    finally:
        await env.close()
    raise RuntimeError(f"the gold path of {item.id} does not end the task.")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    TABLE.write_text(json.dumps(tabulate(), separators=(",", ":")).replace('},"', '},\n"') + "\n", encoding="utf-8")
