"""Control of a running command by a person: pause, step, decide for an agent, end an episode, end the run."""
