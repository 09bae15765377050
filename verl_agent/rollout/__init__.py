"""Play episodes: how long, how, and with which tokens."""
