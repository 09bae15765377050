"""Real web applications on this machine, filled with generated data; each session has a copy of their state."""
