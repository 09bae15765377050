"""A program with its own agent loop on the OpenAI client: it plays a task of TextCraft as the episode loop does."""

import asyncio
import json
import os
import sys

from openai import OpenAI

from env_adapters.textcraft.adapter import TextCraft
from verl_agent.agents.plain import Act
from verl_agent.types import StepResult, TaskItem


async def play(task: dict[str, object], turns: int) -> float:
    """Return the reward of the task."""
    env, client, reward = TextCraft(prompt="short"), OpenAI(), 0.0
    agent = Act(env.action_format)
    messages = agent.build_prompt(await env.reset(TaskItem("textcraft", str(task["id"]), task["data"])))
    for turn in range(1, turns + 1):
        answer = client.chat.completions.create(model="policy", messages=messages)
        text = answer.choices[0].message.content or ""
        action = agent.parse_reply(text)
        step = StepResult(agent.format_error) if action is None else await env.step(action)
        reward += step.reward
        if step.terminated:
            break
        messages += [{"role": "assistant", "content": text}, agent.observe(step, action, turn)]
    return reward


if __name__ == "__main__":
    found = asyncio.run(play(json.loads(os.environ["VERL_AGENT_TASK"]), int(sys.argv[1])))
    sys.stdout.write(json.dumps({"reward": found}) + "\n")
