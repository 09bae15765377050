"""The environments of a run: one, or a mixture whose parts have sections of their own.

```yaml
env:
  name: crafts_and_numbers      # names the run
  retries: 2                    # what a part does not say is taken from here
  mixture:
    - {name: textcraft, weight: 2, train_tasks: easy_train, eval_tasks: easy_test, horizon: {max_turns: [4, 8]}}
    - {name: guess_number, weight: 1, train_tasks: small_train, eval_tasks: small_test, episode: {max_tokens: 128}}
```
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

from verl_agent.config.settings import RunSettings, run_settings
from verl_agent.envs.settings import EnvSettings
from verl_agent.errors import ConfigError, did_you_mean

OWN_SECTIONS = ("horizon", "episode", "credit", "agent")
"""Sections that a part may change for itself."""
TOGETHER = ("place", "turn_gamma", "step_weight", "anchor")
"""Settings of `credit` that a whole batch shares."""
OWN_KEYS = ("name", "label", "weight", "train_tasks", "eval_tasks", "options", "timeout_s", *OWN_SECTIONS)


@dataclass(frozen=True, slots=True)
class MixtureEnv:
    """One environment of a run.

    Attributes:
        label: its name in metrics and rows, unique in the run; the environment's own where it is the only one.
        weight: its share of the tasks of a step, in proportion to the other parts, > 0.
        settings: all sections, as they hold for it.
    """

    label: str
    weight: float
    settings: RunSettings

    @property
    def env(self) -> EnvSettings:
        """Its environment."""
        return self.settings.env


def run_envs(config: Mapping[str, Any]) -> list[MixtureEnv]:
    """The environments of a whole, resolved config.

    Raises:
        ConfigError: a part that is empty, unknown or named twice; or see `run_settings`.
    """
    env = config.get("env")
    mixture = env.get("mixture") if isinstance(env, Mapping) else None
    if mixture is None:
        settings = run_settings(config)
        return [MixtureEnv(settings.env.name, 1.0, settings)]
    if not isinstance(mixture, Sequence) or not mixture or not all(isinstance(part, Mapping) for part in mixture):
        raise ConfigError("env.mixture must be a list of parts such as {name: textcraft, weight: 1}, or null.")
    parts = [_part(config, place, entry) for place, entry in enumerate(mixture)]
    labels = [part.label for part in parts]
    if twice := {label for label in labels if labels.count(label) > 1}:
        raise ConfigError(
            f"env.mixture has several parts called {', '.join(sorted(twice))}. Give each a label of its own."
        )
    for key in TOGETHER:
        if len({getattr(part.settings.credit, key) for part in parts}) > 1:
            raise ConfigError(f"credit.{key} must be the same for all parts of env.mixture: one update learns of all.")
    return parts


def _part(config: Mapping[str, Any], place: int, entry: Mapping[str, Any]) -> MixtureEnv:
    where = f"env.mixture[{place}]"
    for key in entry:
        if key not in OWN_KEYS:
            raise ConfigError(f"{where}.{key} is not a setting. {did_you_mean(str(key), OWN_KEYS)}")
    if not entry.get("name"):
        raise ConfigError(f"{where} has no name. Say which environment it is, such as {{name: textcraft}}.")
    weight, label = entry.get("weight", 1.0), str(entry.get("label") or entry["name"])
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < inf:
        raise ConfigError(f"{where}.weight must be a number > 0, got {weight!r}. To do without the part, leave it out.")
    if not label.replace("_", "").replace("-", "").isalnum():
        raise ConfigError(f"{where}.label={label!r} must consist of letters, digits, _ and -.")
    for name in OWN_SECTIONS:
        if not isinstance(entry.get(name) or {}, Mapping):
            raise ConfigError(f"{where}.{name} must be a section such as {{}}, got {entry[name]!r}.")
    shared = {key: value for key, value in config["env"].items() if key not in ("mixture", "options")}
    own = {key: value for key, value in entry.items() if key not in ("label", "weight", *OWN_SECTIONS)}
    sections = {name: {**(config.get(name) or {}), **(entry.get(name) or {})} for name in OWN_SECTIONS}
    try:
        settings = run_settings({**config, **sections, "env": {**shared, **own}})
    except ConfigError as error:
        raise ConfigError(f"{where} ({label}): {error}") from error
    return MixtureEnv(label, float(weight), settings)


def shares_of_a_batch(weights: Sequence[float], batch_size: int) -> list[int]:
    """Tasks of each part in a batch, rounded up."""
    return [ceil(weight / sum(weights) * batch_size) for weight in weights]
