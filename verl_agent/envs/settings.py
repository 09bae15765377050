"""Sections `env` and `env.hosts` of a recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_agent.errors import ConfigError, did_you_mean

WHERE = ("auto", "local", "ray", "inline")


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Section `env.hosts`: where sessions live. What a host may hold is the adapter's to say (`EnvAdapter.hosting`).

    Attributes:
        where: `local`: child processes of each agent-loop worker or evaluation; `ray`: actors that all workers of
            a training run share, spread over the cluster; `inline`: threads of the worker itself; `auto`: ray where
            the run spans several machines, else local.
        count: most hosts, in each process that has its own; null for 8, under ray for as many as the cluster has
            CPUs for. They are started when they are needed.
        sessions: most sessions of a host; null for what the adapter says.
        memory_mb: MiB above which a host is replaced; null for what the adapter says.
        wait_s: seconds that an episode waits for a place when all hosts are full.
        idle_s: seconds without a call after which a session is closed.
        num_cpus: CPUs that Ray reserves for a host, a fraction as a rule.
        resource: name of a Ray resource that marks the machines on which hosts may run; null for all of them.
    """

    where: str = "auto"
    count: int | None = None
    sessions: int | None = None
    memory_mb: int | None = None
    wait_s: float = 600.0
    idle_s: float = 3600.0
    num_cpus: float = 0.25
    resource: str | None = None

    def __post_init__(self) -> None:
        if self.where not in WHERE:
            raise ConfigError(f"env.hosts.where={self.where!r} is not known. {did_you_mean(self.where, WHERE)}")
        for name in ("count", "sessions", "memory_mb"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"env.hosts.{name} must be >= 1 or null, got {value}.")
        for name in ("wait_s", "idle_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"env.hosts.{name} must be > 0 seconds, got {getattr(self, name)}.")
        if self.num_cpus < 0:
            raise ConfigError(f"env.hosts.num_cpus must be >= 0, got {self.num_cpus}.")


@dataclass(frozen=True, slots=True)
class EnvSettings:
    """Section `env`.

    Attributes:
        name: registered name of the environment.
        train_tasks: tasks to train on: a split of the environment, or a file with one task id a line.
        eval_tasks: tasks to validate and evaluate on, likewise.
        overlap: whether a reinforcement learning run may validate on tasks that it trains on.
        options: keyword arguments of its adapter.
        timeout_s: seconds that one reset or step may take.
        retries: further tries of an episode whose environment failed.
        max_env_error_rate: share of a batch's episodes, 0 to 1, that may still fail before the run stops.
        hosts: where its sessions live.
        mixture: several environments in one run, see `verl_agent.config.mixture`; None for one.
    """

    name: str
    train_tasks: str = "train"
    eval_tasks: str = "test"
    overlap: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 60.0
    retries: int = 2
    max_env_error_rate: float = 0.5
    hosts: HostSettings = field(default_factory=HostSettings)
    mixture: Sequence[Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise ConfigError(f"env.timeout_s must be > 0 seconds, got {self.timeout_s}.")
        if self.retries < 0:
            raise ConfigError(f"env.retries must be >= 0, got {self.retries}.")
        if not 0 <= self.max_env_error_rate <= 1:
            raise ConfigError(f"env.max_env_error_rate must be between 0 and 1, got {self.max_env_error_rate}.")
