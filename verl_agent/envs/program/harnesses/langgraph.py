"""ReAct agent of LangGraph with a shell, on langchain-openai: `langgraph.py TASK`."""

import sys

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from shell import INSTRUCTIONS, bash

agent = create_agent(ChatOpenAI(model="policy"), [tool(bash)], system_prompt=INSTRUCTIONS)
agent.invoke({"messages": [("user", sys.argv[1])]}, {"recursion_limit": 10_000})
