"""Environments of a run: a single one, or a mixture whose environments have their own settings.

```yaml
env:
  name: crafts_and_numbers      # names the run
  retries: 2                    # default for every entry of the mixture
  mixture:
    - {name: textcraft, weight: 2, train_tasks: easy_train, eval_tasks: easy_test, horizon: {max_turns: [4, 8]}}
    - {name: guess_number, weight: 1, train_tasks: small_train, eval_tasks: small_test, episode: {max_tokens: 128}}
```
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Annotated, Any

from pydantic import Field

from verl_agent.config.settings import RunEnv, read_run_env
from verl_agent.errors import ConfigError
from verl_agent.sections import section, settings

ENTRY_SECTIONS = ("horizon", "episode", "credit", "judge", "agent")
"""Sections that an entry of the mixture may override."""
SHARED_CREDIT = ("place", "turn_gamma", "turn_lam", "step_weight", "anchor", "options")
"""Keys of section `credit` that must be equal in the whole batch."""
SHARED_EPISODE = ("record_dir", "record_tokens")
"""Keys of section `episode` that belong to the run, not to an entry."""


@settings("env.mixture[]")
class MixtureEntry:
    """One entry of the list `env.mixture`. What it leaves out is that of the whole run, but `options`."""

    name: Annotated[str, Field(min_length=1)]
    """Registered name of the environment."""
    label: str | None = None
    """Name in metrics and rows, unique in the run; null for that of the environment."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Weight of its tasks in a training step, relative to the other entries. Remove an entry to leave it out."""
    train_tasks: str | None = None
    """See `env.train_tasks`."""
    dev_tasks: str | None = None
    """See `env.dev_tasks`."""
    eval_tasks: str | None = None
    """See `env.eval_tasks`."""
    options: Mapping[str, Any] | None = None
    """See `env.options`."""
    timeout_s: float | None = None
    """See `env.timeout_s`."""
    horizon: Mapping[str, Any] | None = None
    """Keys of section `horizon`."""
    episode: Mapping[str, Any] | None = None
    """Keys of section `episode`."""
    credit: Mapping[str, Any] | None = None
    """Keys of section `credit`."""
    judge: Mapping[str, Any] | None = None
    """Keys of section `judge`."""
    agent: Mapping[str, Any] | None = None
    """Keys of section `agent`."""


def run_envs(config: Mapping[str, Any]) -> list[RunEnv]:
    """Return the environments of a resolved config.

    Raises:
        ConfigError: an entry of the mixture is invalid or a label occurs twice; or see `read_run_env`.
    """
    env = config.get("env")
    mixture = env.get("mixture") if isinstance(env, Mapping) else None
    if mixture is None:
        return [read_run_env(config)]
    if not isinstance(mixture, Sequence) or not mixture or not all(isinstance(entry, Mapping) for entry in mixture):
        raise ConfigError("env.mixture must be a list of environments such as {name: textcraft, weight: 1}, or null.")
    envs = [_mixture_env(config, index, entry) for index, entry in enumerate(mixture)]
    labels = [run_env.label for run_env in envs]
    if repeated := {label for label in labels if labels.count(label) > 1}:
        raise ConfigError(
            f"env.mixture has several environments with the label {', '.join(sorted(repeated))}. Set a different "
            "label for each."
        )
    for key in SHARED_CREDIT:
        if len({repr(getattr(run_env.credit, key)) for run_env in envs}) > 1:
            raise ConfigError(
                f"credit.{key} must be the same for all environments of env.mixture: one update uses the episodes of "
                "all."
            )
    return envs


def _mixture_env(config: Mapping[str, Any], index: int, entry: Mapping[str, Any]) -> RunEnv:
    prefix = f"env.mixture[{index}]"
    made = section(prefix, MixtureEntry, entry)
    label = made.label or made.name
    if not label.replace("_", "").replace("-", "").isalnum():
        raise ConfigError(f"{prefix}.label={label!r} is not allowed. Allowed: letters, digits, _ and -.")
    for key in SHARED_EPISODE:
        if key in (made.episode or {}):
            raise ConfigError(f"{prefix}.episode.{key} is not allowed: a run has one. Set episode.{key}.")
    shared = {key: value for key, value in config["env"].items() if key not in ("mixture", "options")}
    overrides = {key: value for key, value in entry.items() if key not in ("label", "weight", *ENTRY_SECTIONS)}
    sections = {name: {**(config.get(name) or {}), **(getattr(made, name) or {})} for name in ENTRY_SECTIONS}
    try:
        return read_run_env({**config, **sections, "env": {**shared, **overrides}}, label, float(made.weight))
    except ConfigError as error:
        raise ConfigError(f"{prefix} ({label}): {error}") from error


def tasks_per_batch(weights: Sequence[float], batch_size: int) -> list[int]:
    """Return the number of tasks of each environment in a batch, rounded up."""
    return [ceil(weight / sum(weights) * batch_size) for weight in weights]
