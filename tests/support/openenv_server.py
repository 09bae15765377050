"""Server of OpenEnv's package with small environments; it prints its port. Arguments: environment, sessions."""

import random
import socket
import sys

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    number: int


class Told(Observation):
    text: str = ""


class Numbers(Environment):
    """Guess a number from 0 to 9. It takes a seed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.target = random.Random(seed).randrange(10)
        return Told(text="Guess a number from 0 to 9.")

    def step(self, action, timeout_s=None, **kwargs):
        if action.number == 99:
            raise RuntimeError("the simulator broke")
        right = action.number == self.target
        return Told(text="Right." if right else "Wrong.", reward=float(right), done=right)

    @property
    def state(self):
        return self._state


class Unseeded(Numbers):
    """The same without a seed, which its first observation shows."""

    def reset(self, **kwargs):
        self.target = random.randrange(10)
        return Told(text=f"Your ticket is {random.random()}. Guess a number from 0 to 9.")


if __name__ == "__main__":
    kind = {"numbers": Numbers, "unseeded": Unseeded}[sys.argv[1]]
    app = create_fastapi_app(kind, Guess, Told, max_concurrent_envs=int(sys.argv[2]))
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
