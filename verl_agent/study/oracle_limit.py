"""Turn limit that follows from the oracle of an environment: the best that a limit can know, a control of studies."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from verl_agent.envs.registry import make_env
from verl_agent.errors import ConfigError
from verl_agent.horizon import Schedule
from verl_agent.types import TaskItem
from verl_agent.values import to_number


class OracleLimit(Schedule):
    """`slack` times the turns of the oracle, rounded up, at most the last limit of `horizon.max_turns`.

    Args:
        stages: limits of `horizon.max_turns`.
        slack: factor, >= 1.
        env_options: options of the environment, those of `env.options`, if its oracle depends on them.
    """

    def __init__(self, stages: Sequence[int], slack: float = 1.5, env_options: Mapping[str, Any] | None = None) -> None:
        super().__init__(stages)
        if (factor := to_number(slack)) is None or factor < 1:
            raise ConfigError(f"horizon.options.slack={slack!r} is not allowed. Allowed: a number from 1.")
        self._slack, self._options = slack, dict(env_options or {})
        self._turns: dict[str, int] = {}

    @override
    def limit(self, step: int, item: TaskItem) -> int:
        if item.id not in self._turns:
            try:
                turns = make_env(item.env, self._options).oracle_turns(item)
            except ConfigError as error:
                raise ConfigError(f"horizon.options.env_options={self._options} of the oracle: {error}") from error
            if turns is None:
                raise ConfigError(f"task {item.id} of {item.env!r} has no oracle. Choose another horizon.schedule.")
            self._turns[item.id] = turns
        return min(math.ceil(self._slack * self._turns[item.id]), self.stages[-1])
