"""What is measured of our environments alone: in process, many at once, and while they only wait."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from env_adapters.babyai.adapter import BabyAI, build
from env_adapters.babyai.game import Game
from env_adapters.babyai.texts import Style
from env_adapters.scienceworld.adapter import ScienceWorld
from env_adapters.scienceworld.simulator import SimulatorSession
from tests.bench.env_play import Players
from tests.support.hosted import Patient
from tests.support.served import Server
from tests.support.serving import serving
from tests.support.wire_client import Connection, RequestFailedError, Script, Session
from verl_agent.envs.base import Hosting
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import process_pool
from verl_agent.envs.hosts.slot import PoolLimits

ROUNDS = 3


@dataclass(frozen=True, slots=True)
class InProcess:
    """One environment called by one thread, without any server.

    Attributes:
        env: its name.
        steps_per_s: median of the rounds.
        slowest: of the rounds.
        reset_ms: median.
    """

    env: str
    steps_per_s: float
    slowest: float
    reset_ms: float


@dataclass(frozen=True, slots=True)
class FirstLook:
    """Sessions created at once, each with its first task.

    Attributes:
        env: its name.
        server: `ours` or `reference`.
        sessions: how many.
        cold_s: until the last one has its first observation, hosts not yet started.
        warm_s: the same when hosts are running; the median session.
        warm_last_s: the last one.
        alone_s: a single session, hosts running.
    """

    env: str
    server: str
    sessions: int
    cold_s: float
    warm_s: float
    warm_last_s: float
    alone_s: float

    @property
    def flat(self) -> float:
        """What a session costs among many over what it costs alone."""
        return self.warm_last_s / self.sessions / self.alone_s


@dataclass(frozen=True, slots=True)
class Waiting:
    """Sessions whose steps only wait.

    Attributes:
        sessions: how many at once.
        steps: of each.
        sound: sessions that ended without an error.
        seconds: for all.
        alone_s: what a session takes alone.
    """

    sessions: int
    steps: int
    valid: int
    seconds: float
    alone_s: float


def babyai_in_process(scripts: Sequence[Script], split: str) -> InProcess:
    """Text steps of BabyAI: the move, the look around, the ways to all things, the text."""
    items = BabyAI().tasks(split)

    def play(script: Script) -> tuple[float, list[float]]:
        started = time.perf_counter()
        game = Game(build(items[script.item]), Style())
        begun = time.perf_counter()
        for command in script.actions:
            game.play(command)
        return begun - started, [time.perf_counter() - begun]

    return _in_process("babyai", scripts, play)


def scienceworld_in_process(scripts: Sequence[Script], split: str) -> InProcess:
    """Steps of ScienceWorld in one JVM."""
    items = ScienceWorld().tasks(split)

    def play(script: Script) -> tuple[float, list[float]]:
        data = items[script.item].data
        started = time.perf_counter()
        world = SimulatorSession(data["task"], data["variation"])
        world.describe()
        begun = time.perf_counter()
        for command in script.actions:
            world.step(command)
        ended = time.perf_counter()
        world.close()
        return begun - started, [ended - begun]

    return _in_process("scienceworld", scripts, play)


def _in_process(env: str, scripts: Sequence[Script], play: Callable[[Script], tuple[float, list[float]]]) -> InProcess:
    steps = sum(len(script.actions) for script in scripts)
    rates, resets = [], []
    for _ in range(ROUNDS):
        played = [play(script) for script in scripts]
        rates.append(steps / sum(sum(taken) for _, taken in played))
        resets += [reset for reset, _ in played]
    return InProcess(env, median(rates), min(rates), 1000 * median(resets))


async def first_looks(env: str, name: str, server: Server, scripts: Sequence[Script], sessions: int) -> FirstLook:
    """Create sessions at once, on a server that has not been asked for anything yet."""

    async def begin(count: int) -> Players:
        players = Players(server, scripts)
        await players.begin(count)
        return players

    cold = await begin(sessions)
    await cold.close()
    warm = await begin(sessions)
    await warm.close()
    alone = []
    for _ in range(5):
        one = await begin(1)
        alone += one.first_s
        await one.close()
    return FirstLook(env, name, sessions, max(cold.first_s), median(warm.first_s), max(warm.first_s), median(alone))


def waiting(sessions: int, steps: int) -> Waiting:
    """Play sessions over HTTP whose steps wait for a second each, blocking their threads."""
    hosting, limits = Hosting(), PoolLimits(count=-(-sessions // Hosting().sessions))
    pool = process_pool(Patient(1.0, blocks=True), CallLimits(30.0), limits, hosting)
    with serving("guess_number", pool) as running:

        async def one() -> bool:
            try:
                session = Session(await Connection.to(running.url))
                await session.create()
                await session.reset(0)
                for _ in range(steps):
                    await session.step("wait")
                await session.close()
            except RequestFailedError:
                return False
            return True

        async def all_at_once() -> tuple[int, float]:
            started = time.perf_counter()
            valid = sum(await asyncio.gather(*(one() for _ in range(sessions))))
            return valid, time.perf_counter() - started

        valid, seconds = asyncio.run(all_at_once())
    return Waiting(sessions, steps, valid, seconds, float(steps))
