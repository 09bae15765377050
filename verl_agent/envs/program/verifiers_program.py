"""Program that plays task sets of verifiers 0.4.0 (API v1), so that `env.name=program` trains on them.

verifiers and verl need other versions of the same packages. So it runs in a virtual environment of its own:

    python -m verl_agent.envs.program.verifiers_program TASKSET --list 100 > tasks.jsonl   # the first 100 tasks
    python -m verl_agent.envs.program.verifiers_program TASKSET                            # plays VERL_AGENT_TASK

Every tenth task is of the split `test`, the others of `train`. All about an episode is the task set's own: prompts,
turns and rewards. The policy answers through OPENAI_BASE_URL; with several agents it answers for each.
"""

import argparse
import asyncio
import itertools
import json
import os
import sys

from verifiers.v1 import AgentConfig
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.configs.env import EnvConfig
from verifiers.v1.env import Env
from verifiers.v1.runtimes import SubprocessConfig
from verifiers.v1.types import Sampling
from verifiers.v1.utils import loaders
from verifiers.v1.utils.generic import concrete_type

from verl_agent.envs.program import verifiers_harness
from verl_agent.returns import sum_rewards

TESTED = 10
"""One task of `TESTED` belongs to the split `test`."""
OWN_HARNESS = "verl_agent_reply"
"""Id of `ReplyHarness`; verifiers imports a harness by a name without dots."""


def load_taskset(taskset: str, options: str = "{}", harness: str = OWN_HARNESS) -> Env:
    """Return the environment of a task set, whose agents run on this machine.

    Args:
        taskset: id of an installed task set.
        options: JSON of its config.
        harness: id of the harness that plays; see `ReplyHarness`.
    """
    sys.modules[OWN_HARNESS] = verifiers_harness
    env_class = loaders.environment_class(taskset)
    config_class = concrete_type(env_class, EnvConfig, origin=Env) or EnvConfig
    seats = [name for name, field in config_class.model_fields.items() if isinstance(field.default, AgentConfig)]
    agent = {"runtime": SubprocessConfig(), "harness": {"id": harness}}
    config = {"taskset": {"id": taskset, **json.loads(options)}, **dict.fromkeys(seats, agent)}
    return env_class(config_class.model_validate(config))


async def play_taskset(env: Env, index: int) -> float:
    """Play a task and return the sum of its agents' rewards.

    Raises:
        RuntimeError: the episode failed.
    """
    client = EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    task = next(itertools.islice(env.taskset, index, None))
    async with env.serving():
        episode = await env.run_episode(task, ModelContext("policy", client, Sampling()))
    failed = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if failed:
        raise RuntimeError(f"{failed[0].type}: {failed[0].message}")
    return sum_rewards(trace.reward for trace in episode.traces)


def main() -> None:
    """List the tasks, or play one."""
    parser = argparse.ArgumentParser(description="Play a task set of verifiers for verl-agent.")
    parser.add_argument("taskset", help="id of an installed task set")
    parser.add_argument("--options", default="{}", help="JSON of the task set's config")
    parser.add_argument("--harness", default=OWN_HARNESS, help="id of the harness that plays")
    parser.add_argument("--list", type=int, default=0, help="print this many tasks instead", metavar="COUNT")
    asked = parser.parse_args()
    env = load_taskset(asked.taskset, asked.options, asked.harness)
    if not asked.list:
        reward = asyncio.run(play_taskset(env, json.loads(os.environ["VERL_AGENT_TASK"])["index"]))
        sys.stdout.write(json.dumps({"reward": reward}) + "\n")
        return
    for index, task in enumerate(itertools.islice(env.taskset, asked.list)):
        split = "train" if index % TESTED else "test"
        name = task.data.name or task.data.id or f"{asked.taskset}-{index}"
        sys.stdout.write(json.dumps({"id": name, "split": split, "data": {"index": index}}) + "\n")


if __name__ == "__main__":
    main()
