"""Recorder of the demo: the tiny policy of examples/grpo_loop.py before, during and after training.

    python docs/record_demo.py        # two minutes on one core; writes docs/results/demo/

It trains with a fixed and with a growing turn limit. Every ten steps it plays the same held-out tasks and writes their
records, and the success rate over all training tasks, in the layout of a training run.
"""

import asyncio
import json
import random
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import torch

import verl_agent as va
from verl_agent.trace.record import EpisodeMeta, to_record
from verl_agent.trace.record_files import EpisodeWriter

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "examples"))

from grpo_loop import HORIZON, TASKS, TinyPolicy, as_batch, group_advantages, play_group, tasks_of, update  # noqa: E402

HORIZONS = {"fixed": va.Horizon(max_turns=[HORIZON.stages[-1]]), "growing": HORIZON}
SHOWN = ("7:2", "7:6", "10:3", "10:8", "10:9")
"""Held-out tasks that are played again and again."""
STEPS, EVERY, SEED = 120, 10, 0
STARTED = datetime(2026, 11, 25, tzinfo=UTC)


async def record(name: str, horizon: va.Horizon, folder: Path) -> None:
    """Train with a horizon, and record what the policy plays at every tenth step."""
    torch.manual_seed(SEED)
    env, policy, luck = va.make_env("guess_number"), TinyPolicy(), random.Random(SEED)
    optimizer, tasks = torch.optim.AdamW(policy.parameters(), lr=1e-3), tasks_of(env)
    shown = [task for task in env.tasks("small_test") if task.id in SHOWN]
    metrics = folder / "metrics" / "20261125T000000.jsonl"
    metrics.parent.mkdir(parents=True)
    with EpisodeWriter(folder / "episodes" / "demo.jsonl") as writer, metrics.open("w") as log:
        for step in range(STEPS + 1):
            if step:
                limit = horizon.turns_at(step)
                groups = [await play_group(task, env, policy, limit) for task in luck.sample(tasks, TASKS)]
                advantages = [value for group in groups for value in group_advantages(group)]
                update(policy, optimizer, as_batch([episode for group in groups for episode in group], advantages))
            if step % EVERY == 0:
                with torch.random.fork_rng():
                    torch.manual_seed(SEED + step)
                    for episode in await play_all(shown, env, policy):
                        meta = EpisodeMeta(
                            "validation", "small_test", step, f"{step}-{episode.item.id}", 0, STARTED, 0.0
                        )
                        writer.write(to_record(episode, meta))
                    rate = fmean(episode.success for episode in await play_all(tasks * 8, env, policy))
                values = {"episode/success_rate": rate, "episode/horizon": horizon.turns_at(max(step, 1))}
                log.write(json.dumps({"step": step, "data": values}) + "\n")
                print(f"{name}: step {step}, success {rate:.0%}", flush=True)


async def play_all(tasks: Sequence[va.TaskItem], env: va.EnvAdapter, policy: TinyPolicy) -> list[va.Episode]:
    """Play each task once, at the turn limit of the last stage."""
    limit = HORIZON.stages[-1]
    return list(await asyncio.gather(*(va.play(t, env, policy=policy, agent="raw", max_turns=limit) for t in tasks)))


if __name__ == "__main__":
    for chosen, schedule in HORIZONS.items():
        asyncio.run(record(chosen, schedule, DOCS / "results" / "demo" / chosen))
