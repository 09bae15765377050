"""Plan of a study: the composed config of each arm, checked, with hashes of everything that the result depends on."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from verl_agent.config.composing import compose_training
from verl_agent.config.keys import leaves
from verl_agent.envs.registry import load_adapter
from verl_agent.errors import ConfigError
from verl_agent.study.settings import MEASURES, Study, read_study

OWN_KEYS = ("data.seed", "actor_rollout_ref.rollout.seed", "trainer.default_local_dir")
"""Keys that the command sets for each run."""
FOLLOWING = ("trainer.total_training_steps", "trainer.test_freq", "trainer.save_freq")
"""Keys that may differ besides, because the steps of an arm follow from its turn limits and the budget."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Checked study with the files of the study and of its recipe."""

    study: Study
    file: Path
    recipe: Path
    changes: Mapping[tuple[str, str], dict[str, Any]]
    """Dotted keys and values in which each arm differs from the first one, by stratum and arm."""
    facts: dict[str, str]
    """Hashes of the file, of the composed configs and of the code."""

    def describe(self) -> Iterator[str]:
        """Yield the question, the arms with what they change, and the number of runs, line by line."""
        study, first = self.study, next(iter(self.study.arms))
        yield f"question: {' '.join(study.question.split())}"
        yield f"measure: {study.measure}, the {MEASURES[study.measure]}; margin {study.margin:g}"
        for arm in study.arms:
            changed = {key: value for stratum in study.strata for key, value in self.changes[stratum, arm].items()}
            said = ", ".join(f"{key}={value}" for key, value in changed.items())
            yield f"arm {arm}: {'the others are compared with it' if arm == first else said or 'no difference'}"
        yield (
            f"{len(study.strata)} strata x {len(study.arms)} arms x {len(study.seeds)} seeds, "
            f"{study.budget_turns:,} environment turns each, runner {study.runner}"
        )
        if study.search is not None:
            values = ", ".join(f"{value:g}" for value in study.search.values)
            yield f"before: {study.search.key} is chosen among {values} with seeds {list(study.search.seeds)}"
        if study.stop.rule == "successive":
            yield f"after each {study.stop.block} seeds, arms that are worse than another one are dropped"
        yield f"hashes: {', '.join(f'{name} {value}' for name, value in self.facts.items())}"


def make_plan(file: Path) -> Plan:
    """Read and check a study.

    Raises:
        ConfigError: a key, a value, the recipe or an override is not allowed; or an arm changes more than it says.
    """
    study, configs = read_study(file), {}
    recipe = (file.parent / study.recipe).resolve()
    if not recipe.is_file():
        raise ConfigError(f"study.recipe={study.recipe!r} does not exist: {recipe}. The path is relative to {file}.")
    for stratum, shared in study.strata.items():
        for arm, own in study.arms.items():
            if taken := {named(override) for override in (*shared, *own)} & set(OWN_KEYS):
                raise ConfigError(f"arm {arm} sets {min(taken)}, which the command sets for each run. Leave it out.")
            try:
                configs[stratum, arm] = compose_training(recipe, [*shared, *own], resolve=False)
            except ConfigError as error:
                raise ConfigError(f"arm {arm}, stratum {stratum}: {error}") from error
    first, changes = next(iter(study.arms)), {}
    for (stratum, arm), config in configs.items():
        changes[stratum, arm] = differing(configs[stratum, first], config)
        check_says_all(arm, changes[stratum, arm], [*study.arms[first], *study.arms[arm]])
    modules = {load_adapter(config["env"]["name"]).__module__ for config in configs.values()}
    facts = {
        "file": digest(file.read_bytes()),
        "configs": digest(json.dumps([*configs.values()], sort_keys=True, default=str).encode()),
        "code": source_digest(sorted(modules)),
    }
    return Plan(study, file.resolve(), recipe, changes, facts)


def named(override: str) -> str:
    """Return the key of an override."""
    return override.lstrip("+~").partition("=")[0]


def differing(first: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dotted keys in which two configs differ, with the values of the second; None for a key it lacks.

    A key that refers to another one is the same in both.
    """
    before, after = dict(leaves(first)), dict(leaves(other))
    return {key: after.get(key) for key in {**before, **after} if before.get(key) != after.get(key)}


def check_says_all(arm: str, changed: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Check that each difference of an arm is named by an override, of it or of the first arm.

    Raises:
        ConfigError: a key differs that no override names.
    """
    said = {named(override) for override in overrides}
    silent = [
        f"{key}={value}"
        for key, value in changed.items()
        if key not in FOLLOWING and not any(key == one or key.startswith(f"{one}.") for one in said)
    ]
    if silent:
        raise ConfigError(
            f"arm {arm} differs from the first arm in more than it says: {', '.join(silent[:5])}. Name each key in its "
            "overrides, or in those of the first arm, so that a reader of the file sees it."
        )


def source_digest(adapters: Sequence[str]) -> str:
    """Return the hash of the sources of this package and of the packages of adapters, given by their modules."""
    files = [str(import_module(module).__file__) for module in ("verl_agent", *adapters)]
    paths = sorted({path for file in files for path in Path(file).parent.rglob("*") if path.suffix in (".py", ".yaml")})
    return digest(b"".join(path.name.encode() + path.read_bytes() for path in paths))


def digest(content: bytes) -> str:
    """Return a short hash."""
    return sha256(content).hexdigest()[:16]
