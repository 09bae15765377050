"""Agents: prompts for a model, parsing of its replies, and the part of a conversation that it sees."""
