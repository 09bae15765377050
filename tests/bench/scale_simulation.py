"""Simulation of training steps: where the turns of their episodes wait, with synchronous and asynchronous rollout.

A turn waits for its agent-loop worker, for the server of an engine, for the engine, and for its environment server (a
host). An episode waits for its worker again, and for TransferQueue. A step waits for its groups, within the bounds of
the queue. Prefill, uneven routing and a limit of cores are left out. `tests.bench.scale_plan` has the numbers.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU time of the project's own processes.

    Attributes:
        episode_ms: agent loop, for an episode without its turns.
        loop_ms: agent loop, for a turn.
        server_ms: server of an engine, for a turn.
        host_ms: host, for a call, without the environment's own work.
        queue_ms: TransferQueue's controller, for an episode.
        storage_ms: TransferQueue's storage, for an episode.
        driver_ms: driver, for an episode.
    """

    episode_ms: float
    loop_ms: float
    server_ms: float
    host_ms: float
    queue_ms: float
    storage_ms: float
    driver_ms: float


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment.

    Attributes:
        name: name in the table.
        reset_ms: CPU time of a reset on a host.
        turn_ms: CPU time of a turn on a host.
        latency_s: median time of a turn without CPU, for example the network's.
        sigma: deviation of the logarithm of that time.
        turns: numbers of turns of an episode, each as frequent as the others.
        sessions: sessions of a host. Only a synchronous run may have fewer in all than episodes.
    """

    name: str
    reset_ms: float
    turn_ms: float
    latency_s: float
    sigma: float
    turns: tuple[int, ...]
    sessions: int


@dataclass(frozen=True, slots=True)
class Machines:
    """Nodes, and the model on their GPUs. Each process has a core of its own.

    Attributes:
        nodes: number of nodes.
        workers: agent-loop workers on a node.
        gpus: GPUs of a node.
        tensor_parallel: GPUs of a replica of the engine.
        hosts: hosts on a node, each of which computes one turn at a time.
        storages: storage units of TransferQueue on all nodes.
        parameters: parameters of the model.
        launch_s: time of the engine for a token that tensor parallelism does not shorten.
        token_s: further time for a token on one GPU; the GPUs of a replica share it.
        batch: concurrent requests of a replica above which this further time grows in proportion to them.
        reply_tokens: tokens of a reply.
        turn_tokens: tokens of a turn, as the update sees them.
        update_flops: operations per second of a GPU in the update.
        transfer_s: duration of a weight transfer.
    """

    nodes: int = 1
    workers: int = 8
    gpus: int = 8
    tensor_parallel: int = 1
    hosts: int = 64
    storages: int = 2
    parameters: float = 7e9
    launch_s: float = 0.004
    token_s: float = 0.008
    batch: int = 64
    reply_tokens: int = 150
    turn_tokens: int = 400
    update_flops: float = 3e14
    transfer_s: float = 5.0

    @property
    def replicas(self) -> int:
        """Replicas of the engine."""
        return self.gpus * self.nodes // self.tensor_parallel

    def step_s(self, requests: float) -> float:
        """Return the time in which a replica gives each of its concurrent requests a token."""
        return self.launch_s + self.token_s / self.tensor_parallel * max(1.0, requests / self.batch)


@dataclass(frozen=True, slots=True)
class Mode:
    """Bounds of the queue between rollout and update; see docs/explanations/asynchronous.md.

    Attributes:
        name: name in the table.
        warmup: groups in flight beside those of the step, as a share of the step's; 0 for a synchronous run.
        threshold: a group is trained on at most this value - 1 updates after the step that dispatched it.
        steps: simulated steps; of several, the first one fills the queue and is not counted.
    """

    name: str
    warmup: float
    threshold: int
    steps: int


SYNCHRONOUS, PARTIAL = Mode("synchronous", 0.0, 1, 1), Mode("partial", 0.5, 3, 3)
SAMPLES, WAIT_S = 8, 600.0
"""Episodes of a group, and `env.hosts.wait_s`."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Inputs of a simulation; `episodes` are those of a step."""

    costs: Costs
    environment: Environment
    machines: Machines
    episodes: int
    mode: Mode = SYNCHRONOUS

    @property
    def places(self) -> int:
        """Sessions of all hosts."""
        return self.environment.sessions * self.machines.hosts * self.machines.nodes

    @property
    def is_admitted(self) -> bool:
        """False for an asynchronous run with fewer places than episodes in flight, which `check_places` refuses."""
        return not self.mode.warmup or self.places >= (1 + self.mode.warmup) * self.episodes

    def on(self, **changes: Any) -> "Scene":
        """Return the scene on other machines."""
        return replace(self, machines=replace(self.machines, **changes))

    def twice(self, count: str) -> "Scene":
        """Return the scene with twice as many of something on its machines."""
        return self.on(**{count: 2 * getattr(self.machines, count)})


SETTINGS: Mapping[str, Callable[[Scene], Scene]] = {
    "GPUs": lambda scene: scene.twice("gpus"),
    "tensor_model_parallel_size": lambda scene: scene.twice("tensor_parallel"),
    "rollout=partial": lambda scene: replace(scene, mode=replace(PARTIAL, steps=max(PARTIAL.steps, scene.mode.steps))),
    "env.hosts.count": lambda scene: scene.twice("hosts"),
    "agent.num_workers": lambda scene: scene.twice("workers"),
    "num_data_storage_units": lambda scene: scene.twice("storages"),
}
"""Settings, and what a step is like with twice their value or with the overlay."""
PARTS: Mapping[str, Sequence[str]] = {
    "engine": ("GPUs", "tensor_model_parallel_size", "rollout=partial", "env.hosts.count"),
    "update": ("GPUs",),
    "transfer": (),
    "latency": ("rollout=partial", "env.hosts.count"),
    "hosts": ("env.hosts.count",),
    "loop": ("agent.num_workers",),
    "server": ("GPUs",),
    "storage": ("num_data_storage_units",),
    "queue": (),
    "driver": (),
}
"""Parts of a step, with the settings that may move them. There is one controller (`queue`) and one driver.
More hosts have more places, so that more episodes share an engine or wait at once."""
SENSIBLE, OWN = 0.05, 0.1
"""Share of a step that a setting must save to be named, and share of its part's own time."""


@dataclass(frozen=True, slots=True)
class Played:
    """Simulated steps.

    Attributes:
        seconds: duration of a step.
        waited_s: longest wait of an episode for a place in a host.
        oldest: largest number of updates between dispatch and training of a group.
        most: most episodes in flight at once.
    """

    seconds: float
    waited_s: float
    oldest: int
    most: int


@dataclass(frozen=True, slots=True)
class Step:
    """A step of one size.

    Attributes:
        environment: name of the environment.
        mode: name of the mode.
        nodes: number of nodes.
        hosts: number of hosts on all nodes.
        places: sessions of these hosts.
        episodes: number of episodes of the step.
        played: simulated steps.
        saved: share of the step that each of `PARTS` takes: what it would save if it took no time.
        moved: share of the step that each setting saves which moves the first part.
    """

    environment: str
    mode: str
    nodes: int
    hosts: int
    places: int
    episodes: int
    played: Played
    saved: dict[str, float]
    moved: dict[str, float]

    @property
    def parts(self) -> list[str]:
        """Parts, the one with the largest share first."""
        return sorted(self.saved, key=self.saved.__getitem__, reverse=True)


class Simulation:
    """Steps of so many episodes, event by event, composed as the trainers and `ReplayBufferAsync` compose them."""

    def __init__(self, scene: Scene) -> None:
        self._costs, self._environment, self._machines = scene.costs, scene.environment, scene.machines
        self._mode, machines, nodes = scene.mode, scene.machines, scene.machines.nodes
        self._batch = max(1, scene.episodes // SAMPLES)
        self._size = scene.episodes // self._batch
        self._hosts, self._loops = [0.0] * (machines.hosts * nodes), [0.0] * (machines.workers * nodes)
        self._servers, self._queue, self._storages = [0.0] * machines.replicas, [0.0], [0.0] * machines.storages
        self._places = math.inf if scene.mode.warmup else scene.places
        self._draws, self._lengths, self._turns = list[random.Random](), list[int](), list[int]()
        self._waiting, self._events = deque[tuple[float, int]](), list[tuple[float, int, str]]()
        self._step_of, self._left, self._done, self._ends = list[int](), dict[int, int](), list[int](), list[float]()
        self._step, self._running, self._resumed, self._updates = 1, 0, 0.0, False
        self._waited_s, self._oldest, self._most = 0.0, 0, 0

    def run(self) -> Played:
        """Play the steps of the mode."""
        self._dispatch(self._batch + math.floor(self._mode.warmup * self._batch), 0.0)
        while len(self._ends) < self._mode.steps:
            now, number, stage = heapq.heappop(self._events)
            if stage == "updated":
                self._ends.append(now)
                self._step, self._updates = self._step + 1, False
                self._dispatch(self._batch, now)
            else:
                self._advance(now, number, stage)
            late = any(self._step - self._step_of[group] + 1 >= self._mode.threshold for group in self._oldest_left())
            if not self._updates and len(self._done) >= self._batch and not late:
                self._update(now)
        first, *others = self._ends
        seconds = (others[-1] - first) / len(others) if others else first
        return Played(seconds, self._waited_s, self._oldest, self._most)

    def _oldest_left(self) -> list[int]:
        """Return the unfinished group that was dispatched first, if there is one."""
        return list(islice(self._left, 1))

    def _dispatch(self, groups: int, now: float) -> None:
        for group in range(len(self._step_of), len(self._step_of) + groups):
            self._step_of.append(self._step)
            self._left[group] = self._size
            for number in range(group * self._size, (group + 1) * self._size):
                self._draws.append(random.Random(number))  # equal in any order of turns
                self._lengths.append(self._draws[number].choice(self._environment.turns))
                self._waiting.append((now, number))
        self._turns += self._lengths[len(self._turns) :]
        self._most = max(self._most, self._size * (len(self._left) + len(self._done)))
        self._admit(now)

    def _admit(self, now: float) -> None:
        """Give free places to waiting episodes."""
        while self._waiting and self._places > 0:
            since, number = self._waiting.popleft()
            self._places -= 1
            self._waited_s = max(self._waited_s, now - since)
            heapq.heappush(self._events, (now, number, "reset"))

    def _advance(self, now: float, number: int, stage: str) -> None:
        """Let an episode that has reached a stage pass it."""
        costs, environment = self._costs, self._environment
        if stage == "reset":
            after = serve(self._hosts, number, now, environment.reset_ms + costs.host_ms), "loop"
        elif stage == "loop":
            after = serve(self._loops, number, now, costs.loop_ms), "server"
        elif stage == "server":
            self._running += 1
            step_s = self._machines.step_s(self._running / len(self._servers))
            asked = serve(self._servers, number, max(now, self._resumed), costs.server_ms)
            after = asked + self._machines.reply_tokens * step_s, "engine"
        elif stage == "engine":
            self._running -= 1
            self._turns[number] -= 1
            ended = serve(self._hosts, number, now, environment.turn_ms + costs.host_ms)
            if environment.latency_s:
                ended += self._draws[number].lognormvariate(math.log(environment.latency_s), environment.sigma)
            after = ended, "loop" if self._turns[number] else "end"
        elif stage == "end":
            self._places += 1
            self._admit(now)
            after = serve(self._loops, number, now, costs.episode_ms), "storage"
        elif stage == "storage":
            after = serve(self._storages, number, now, costs.storage_ms), "queue"
        elif stage == "queue":
            after = serve(self._queue, number, now, costs.queue_ms), "finished"
        else:
            group = number // self._size
            self._left[group] -= 1
            if not self._left[group]:
                del self._left[group]
                heapq.heappush(self._done, group)
            return
        heapq.heappush(self._events, (after[0], number, after[1]))

    def _update(self, now: float) -> None:
        """Train on the first finished groups; engines pause meanwhile and then continue their replies."""
        groups = [heapq.heappop(self._done) for _ in range(self._batch)]
        self._oldest = max(self._oldest, *(self._step - self._step_of[group] for group in groups))
        turns = sum(sum(self._lengths[group * self._size : (group + 1) * self._size]) for group in groups)
        machines, episodes = self._machines, self._batch * self._size
        passes = (
            20 * machines.parameters * machines.turn_tokens * turns
        )  # log-probs of policy and reference, two epochs
        pause = passes / (machines.update_flops * machines.gpus * machines.nodes)
        pause += machines.transfer_s + episodes * self._costs.driver_ms / 1000
        self._resumed, self._updates = now + pause, True
        self._events = [(at + pause * (stage == "engine"), number, stage) for at, number, stage in self._events]
        heapq.heapify(self._events)
        heapq.heappush(self._events, (self._resumed, -1, "updated"))


def serve(resource: list[float], number: int, now: float, ms: float) -> float:
    """Return the time at which an episode's part of a resource has served it, after all that came before."""
    at = number % len(resource)
    resource[at] = max(now, resource[at]) + ms / 1000
    return resource[at]


def without(part: str, scene: Scene) -> Scene:
    """Return a scene with a part that takes no time."""
    costs, environment = scene.costs, scene.environment
    if part == "engine":
        return scene.on(launch_s=0.0, token_s=0.0)
    if part == "update":
        return scene.on(update_flops=math.inf)
    if part == "transfer":
        return scene.on(transfer_s=0.0)
    if part == "latency":
        environment = replace(environment, latency_s=0.0)
    elif part == "hosts":
        environment = replace(environment, reset_ms=0.0, turn_ms=0.0, sessions=10**6)
        costs = replace(costs, host_ms=0.0)
    else:
        costs = replace(costs, **{f"{part}_ms": 0.0}, **({"episode_ms": 0.0} if part == "loop" else {}))
    return replace(scene, costs=costs, environment=environment)


def seconds(scene: Scene, without_part: str | None = None) -> float:
    """Return the duration of a step, of which a part may take no time."""
    return Simulation(without(without_part, scene) if without_part else scene).run().seconds


def moves(scene: Scene, part: str, whole_s: float, rest_s: float) -> dict[str, float]:
    """Return the settings that shorten a step and its part's own time, with the share of the step that each saves.

    Args:
        scene: inputs of the step.
        part: the part.
        whole_s: duration of the step.
        rest_s: duration of the step without the part.
    """
    found = {}
    for setting in PARTS[part]:
        other = SETTINGS[setting](scene)
        if other == scene or not other.is_admitted or not other.machines.replicas:
            continue
        moved_s = seconds(other)
        own_s = moved_s - seconds(other, part)
        if 1 - moved_s / whole_s >= SENSIBLE and own_s <= (1 - OWN) * (whole_s - rest_s):
            found[setting] = 1 - moved_s / whole_s
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def simulate(scene: Scene) -> Step:
    """Return a step, the time that each of its parts takes, and the settings that move the first one."""
    played, machines = Simulation(scene).run(), scene.machines
    rest = {part: seconds(scene, part) for part in PARTS}
    saved = {part: 1 - rest_s / played.seconds for part, rest_s in rest.items()}
    first = min(rest, key=rest.__getitem__)
    moved = moves(scene, first, played.seconds, rest[first])
    sizes = machines.nodes, machines.hosts * machines.nodes, scene.places, scene.episodes
    return Step(scene.environment.name, scene.mode.name, *sizes, played, saved, moved)
