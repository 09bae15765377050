"""Agent of pydantic-ai with a shell: `pydantic_ai.py TASK`."""

import sys

from pydantic_ai import Agent
from pydantic_ai.usage import UsageLimits
from shell import INSTRUCTIONS, bash

agent = Agent("openai-chat:policy", system_prompt=INSTRUCTIONS, tools=[bash])
agent.run_sync(sys.argv[1], usage_limits=UsageLimits(request_limit=None))
