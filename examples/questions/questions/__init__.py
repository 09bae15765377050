"""Find a thing by yes-or-no questions: an environment and an agent, registered by entry points."""
