"""Settings classes of sections `env` and `env.hosts`."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field

from verl_agent.envs.base import HOST_MB
from verl_agent.sections import Needs, OnResume, settings

AUTO = "auto"
"""Value of `env.dev_tasks` that holds training tasks out."""
IN_RAY = Needs("env.hosts.where", "ray", "auto")
RETRIED = Needs("env.retries", instead="Without a retry, no error is the action's.")
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
OnActionError = Literal["count", "drop"]
"""Treatment of an episode that its last action ended with an error, see `EnvSettings.on_action_error`."""


@settings("env.hosts")
class HostSettings:
    """Host processes that run the sessions of the environment."""

    where: Literal["auto", "local", "ray", "inline"] = "auto"
    """Place of the hosts. `local`: child processes of each agent-loop worker or evaluation; `ray`: actors on the
    machines of a cluster, shared by all workers of a training run; `inline`: threads of the worker itself; `auto`:
    `ray` if the run spans several machines, else `local`."""
    count: Count | None = None
    """Most hosts of a pool, started on demand; null for 8, or with `ray` for as many as the free CPUs of the cluster
    hold, `num_cpus` each."""
    sessions: Count | None = None
    """Most sessions of a host; null for the adapter's `hosting.sessions`."""
    memory_mb: Annotated[int, Field(ge=HOST_MB)] | None = None
    """Memory in MiB above which a host is replaced; null for the adapter's `hosting.memory_mb`."""
    wait_s: Seconds = 600.0
    """Seconds that a new session waits for a free slot when all hosts are full."""
    idle_s: Annotated[Seconds, IN_RAY] = 3600.0
    """Seconds without a call after which a session is closed, whose worker may have been lost; longer than an update
    with its checkpoint."""
    num_cpus: Annotated[float, Field(ge=0), IN_RAY] = 0.25
    """CPUs that Ray reserves for a host, usually a fraction."""
    resource: Annotated[str | None, IN_RAY] = None
    """Ray resource that a machine must have to run hosts; null for every machine."""


@settings("env")
class EnvSettings:
    """The environment. All commands read it, each the keys that it needs."""

    name: str
    """Registered name of the environment."""
    train_tasks: Annotated[str, OnResume("eval")] = "train"
    """Tasks to train on: a split of the environment, or a file with one task id a line."""
    dev_tasks: str | None = AUTO
    """Tasks to validate on during reinforcement learning and to choose the best checkpoint on: a split or a file; null
    for `eval_tasks`; `auto` for a tenth of the training tasks, at most 100, which are then not trained on, or null if
    the run validates only once."""
    eval_tasks: Annotated[str, OnResume("train", "sft", "eval")] = "test"
    """Tasks to test on: a split or a file. Reinforcement learning plays them before the first step and after the last.
    """
    overlap: Annotated[bool, OnResume("train", "play")] = False
    """True if a reinforcement learning run may validate and test on tasks that it trains on; nothing is held out then.
    """
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the adapter."""
    timeout_s: Annotated[Seconds, OnResume("train", "play")] = 60.0
    """Most seconds of one reset or step."""
    retries: Annotated[Annotated[int, Field(ge=0)], OnResume("train", "play")] = 2
    """Further tries of a call after an environment error, each in a fresh session in which the actions before it are
    replayed; where that is not possible, further attempts at the episode."""
    on_action_error: Annotated[OnActionError, RETRIED] = "count"
    """Treatment of an episode whose last action raises the same error in all these tries. `count` counts it as a
    failure of the policy, with the return so far and the stop reason `action_error`. `drop` leaves it out as an
    environment error."""
    max_env_error_rate: Annotated[Annotated[float, Field(ge=0, le=1)], OnResume("train", "play")] = 0.5
    """Share of a batch's episodes, 0 to 1, that may end with an environment error or an action error. A larger share
    stops the run."""
    hosts: Annotated[HostSettings, OnResume("train", "play")] = field(default_factory=HostSettings)
    """Host processes of the sessions."""
    mixture: Sequence[Mapping[str, Any]] | None = None
    """Several environments in one run, see `verl_agent.config.mixture`; null for one."""
