"""Agent of smolagents with a shell, by function calls or by code: `smolagents.py TASK [code|tools]`."""

import os
import sys

from shell import bash
from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

_, task, *kind = sys.argv
kinds = {"tools": ToolCallingAgent, "code": CodeAgent}
model = OpenAIServerModel("policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = kinds[kind[0] if kind else "code"]
agent(tools=[tool(bash)], model=model, max_steps=1000, verbosity_level=0).run(task)
