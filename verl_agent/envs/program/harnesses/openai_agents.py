"""Agent of the OpenAI Agents SDK with a shell: `openai_agents.py TASK [responses|chat_completions]`."""

import sys

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled
from shell import INSTRUCTIONS, bash

_, task, *api = sys.argv
set_tracing_disabled(True)
set_default_openai_api(*api or ["responses"])
agent = Agent(name="agent", instructions=INSTRUCTIONS, tools=[function_tool(bash)], model="policy")
Runner.run_sync(agent, task, max_turns=1000)
