"""The environment workshop for verl-agent."""
