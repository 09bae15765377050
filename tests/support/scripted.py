"""Policies of plain Python that tests name by their path."""

from verl_agent.types import Message


def seven(messages: list[Message]) -> str:
    return "Thought: it is always seven.\nAction: 7"
