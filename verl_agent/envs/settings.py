"""Settings classes of sections `env` and `env.hosts`."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_agent.envs.base import HOST_MB
from verl_agent.errors import ConfigError
from verl_agent.sections import STRICT

AUTO = "auto"
"""Value of `env.dev_tasks` that holds training tasks out."""
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
OnActionError = Literal["count", "drop"]
"""Treatment of an episode that its last action ended with an error, see `EnvSettings.on_action_error`."""


@dataclass(frozen=True, slots=True, config=STRICT)
class HostSettings:
    """Section `env.hosts`: the host processes that run the sessions of an environment."""

    where: Literal["auto", "local", "ray", "inline"] = "auto"
    """`local`: child processes of each agent-loop worker or evaluation; `ray`: actors on the machines of a cluster,
    shared by all workers of a training run; `inline`: threads of the worker itself; `auto`: `ray` if the run spans
    several machines, else `local`."""
    count: Count | None = None
    """Most hosts of a pool, started on demand; null for 8, or with `ray` for as many as the cluster has CPUs."""
    sessions: Count | None = None
    """Most sessions of a host; null for the adapter's `hosting.sessions`."""
    memory_mb: Annotated[int, Field(ge=HOST_MB)] | None = None
    """Memory in MiB above which a host is replaced; null for the adapter's `hosting.memory_mb`."""
    wait_s: Seconds = 600.0
    """Seconds that a new session waits for a free slot when all hosts are full."""
    idle_s: Seconds = 3600.0
    """Seconds without a call after which a session is closed."""
    num_cpus: Annotated[float, Field(ge=0)] = 0.25
    """CPUs that Ray reserves for a host, usually a fraction."""
    resource: str | None = None
    """Ray resource that a machine must have to run hosts; null for every machine."""


@dataclass(frozen=True, slots=True, config=STRICT)
class EnvSettings:
    """Section `env`."""

    name: str
    """Registered name of the environment."""
    train_tasks: str = "train"
    """Tasks to train on: a split of the environment, or a file with one task id a line."""
    dev_tasks: str | None = AUTO
    """Tasks to validate on during reinforcement learning and to choose the best checkpoint on: a split or a file; null
    for `eval_tasks`; `auto` for a tenth of the training tasks, at most 100, which are then not trained on, or null if
    the run validates only once."""
    eval_tasks: str = "test"
    """Tasks to test on: a split or a file. Reinforcement learning plays them before the first step and after the last.
    """
    overlap: bool = False
    """True if a reinforcement learning run may validate and test on tasks that it trains on; nothing is held out then.
    """
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the adapter."""
    timeout_s: Seconds = 60.0
    """Most seconds of one reset or step."""
    retries: Annotated[int, Field(ge=0)] = 2
    """Further tries of a call after an environment error, each in a fresh session in which the actions before it are
    replayed; where that is not possible, further attempts at the episode."""
    on_action_error: OnActionError = "count"
    """Treatment of an episode whose last action raises the same error in all these tries. `count` counts it as a
    failure of the policy, with the return so far and the stop reason `action_error`. `drop` leaves it out as an
    environment error."""
    max_env_error_rate: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of a batch's episodes, 0 to 1, that may end with an environment error or an action error. A larger share
    stops the run."""
    hosts: HostSettings = field(default_factory=HostSettings)
    """Host processes of the sessions."""
    mixture: Sequence[Mapping[str, Any]] | None = None
    """Several environments in one run, see `verl_agent.config.mixture`; null for one."""

    def __post_init__(self) -> None:
        if self.on_action_error != "count" and not self.retries:
            raise ConfigError(
                f"env.on_action_error={self.on_action_error!r} has no effect with env.retries=0: without a retry, no "
                "error is the action's. Leave it at 'count', or set env.retries to 1 or more."
            )
