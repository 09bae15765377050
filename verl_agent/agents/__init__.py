"""How a model is asked for actions, and how its replies are read."""
