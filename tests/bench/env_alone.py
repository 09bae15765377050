"""Measurements of the environments without the reference: in process, many sessions at once, and waiting sessions."""

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
        env: name of the environment.
        steps_per_s: steps per second, median of the rounds.
        slowest: steps per second in the slowest round.
        reset_ms: median duration of a reset in milliseconds.
    """

    env: str
    steps_per_s: float
    slowest: float
    reset_ms: float


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Times until sessions that are created at once have their first observation.

    Attributes:
        env: name of the environment.
        server: `ours` or `reference`.
        sessions: number of sessions.
        cold_s: seconds of the last session, without running hosts.
        warm_s: seconds of the median session, with running hosts.
        warm_last_s: seconds of the last session, with running hosts.
        alone_s: seconds of a single session, with running hosts.
    """

    env: str
    server: str
    sessions: int
    cold_s: float
    warm_s: float
    warm_last_s: float
    alone_s: float

    @property
    def relative_cost(self) -> float:
        """Seconds for each of many sessions, divided by the seconds of a single one."""
        return self.warm_last_s / self.sessions / self.alone_s


@dataclass(frozen=True, slots=True)
class Waiting:
    """Sessions whose steps only wait.

    Attributes:
        sessions: number of concurrent sessions.
        steps: steps of each session.
        valid: number of sessions that ended without an error.
        seconds: duration of all sessions.
        alone_s: duration of a session alone in seconds.
    """

    sessions: int
    steps: int
    valid: int
    seconds: float
    alone_s: float


def babyai_in_process(scripts: Sequence[Script], split: str) -> InProcess:
    """Measure text steps of BabyAI: the move, the field of view, the paths to all objects, and the text."""
    items = BabyAI().tasks(split)

    def play(script: Script) -> tuple[float, list[float]]:
        started = time.perf_counter()
        game = Game(build(items[script.item]), Style())
        reset_done = time.perf_counter()
        for command in script.actions:
            game.play(command)
        return reset_done - started, [time.perf_counter() - reset_done]

    return _in_process("babyai", scripts, play)


def scienceworld_in_process(scripts: Sequence[Script], split: str) -> InProcess:
    """Measure steps of ScienceWorld in one JVM."""
    items = ScienceWorld().tasks(split)

    def play(script: Script) -> tuple[float, list[float]]:
        data = items[script.item].data
        started = time.perf_counter()
        world = SimulatorSession(data["task"], data["variation"])
        world.describe()
        reset_done = time.perf_counter()
        for command in script.actions:
            world.step(command)
        ended = time.perf_counter()
        world.close()
        return reset_done - started, [ended - reset_done]

    return _in_process("scienceworld", scripts, play)


def _in_process(env: str, scripts: Sequence[Script], play: Callable[[Script], tuple[float, list[float]]]) -> InProcess:
    steps = sum(len(script.actions) for script in scripts)
    rates, resets = [], []
    for _ in range(ROUNDS):
        played = [play(script) for script in scripts]
        rates.append(steps / sum(sum(taken) for _, taken in played))
        resets += [reset for reset, _ in played]
    return InProcess(env, median(rates), min(rates), 1000 * median(resets))


async def start_times(env: str, name: str, server: Server, scripts: Sequence[Script], sessions: int) -> StartTimes:
    """Create sessions at once, on a server that has not answered any call yet."""

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
    return StartTimes(env, name, sessions, max(cold.first_s), median(warm.first_s), max(warm.first_s), median(alone))


def waiting(sessions: int, steps: int) -> Waiting:
    """Play sessions over HTTP whose steps block their threads for a second each."""
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
