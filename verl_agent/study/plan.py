"""Plan of a study: the composed config of each arm, checked, with hashes of what the result depends on.

The weights of a model are not hashed: a recipe names their folder.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from verl_agent.config.composing import compose_training
from verl_agent.errors import ConfigError
from verl_agent.study.environments import (
    check_evaluated_alike,
    check_groups,
    check_small_model,
    evaluation,
    learning_rate,
    least_steps,
    load_environment,
    named_files,
    own_algorithms,
    study_env,
    trains_on_tested,
)
from verl_agent.study.hashes import short_hash, source_digest
from verl_agent.study.inference import first_decision, least_seeds
from verl_agent.study.obeyed import check_small_runner, differing, is_within, named
from verl_agent.study.settings import MEASURES, OF_ARMS, Study, read_study

OWN_KEYS = ("data.seed", "actor_rollout_ref.rollout.seed", "trainer.default_local_dir", "trainer.val_before_train")
"""Keys that the command sets for each run."""
FOLLOWING = ("trainer.total_training_steps", "trainer.test_freq", "trainer.save_freq")
"""Keys that may differ besides, because the steps of an arm follow from its turn limits and the budget."""
FEW_STEPS, LOW_RATE = 10, 1.0e-4
"""Training steps and a learning rate below those of all studies of the small runner in which an arm learned."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Checked study with the files of the study and of its recipe."""

    study: Study
    file: Path
    recipe: Path
    changes: Mapping[tuple[str, str], dict[str, Any]]
    """Dotted keys and values in which each arm differs from the first one, by stratum and arm."""
    facts: dict[str, str]
    """Hashes of the file, of the composed configs with their lists of tasks, and of the code."""
    seen: Sequence[str]
    """Arms whose training shares a split, or the id of a task in two files, with their evaluation."""
    ignored: Sequence[str]
    """Keys with values that the recipe sets, and that the small runner ignores."""
    steps: Mapping[str, int]
    """`least_steps` of each arm, of the stratum with the fewest."""
    rates: Sequence[float]
    """Learning rates of the actor, in ascending order."""
    by_group: Sequence[str]
    """Arms whose groups of one training step may have different turn limits."""

    def describe(self) -> Iterator[str]:
        """Yield the question, the arms with what they change, and the number of runs, line by line."""
        study = self.study
        yield f"question: {' '.join(study.question.split())}"
        yield f"measure: {study.measure}, the {MEASURES[study.measure]}; margin {study.margin:g}"
        yield from self.describe_arms()
        strata, arms, seeds = len(study.strata), len(study.arms), len(study.seeds)
        shown = f"{strata} strata x " if strata > 1 else ""
        yield (
            f"{shown}{arms} arms x {seeds} seeds = {strata * arms * seeds} runs, "
            f"{study.budget_turns:,} environment turns each, runner {study.runner}"
        )
        if study.runner == "tiny":
            yield from self.describe_training()
        yield from self.describe_least_seeds()
        if self.ignored:
            yield f"the small runner ignores of the recipe: {', '.join(self.ignored)}"
        yield from self.describe_seen()
        if study.search is not None:
            values = ", ".join(f"{value:g}" for value in study.search.values)
            yield (
                f"before: {study.search.key} is chosen for each arm among {values}, with seeds "
                f"{list(study.search.seeds)} and {study.search.turns(study.budget_turns):,} turns each"
            )
        if study.stop.rule == "successive":
            first_look = first_decision(len(study.seeds), study.stop.block, study.stop.alpha)
            yield (
                f"after each {study.stop.block} seeds, from {first_look} on, arms that are worse than another one are "
                "dropped"
            )
        if study.stop.rule == "looks":
            looks = " and ".join(map(str, study.looks))
            yield (
                f"looks after {looks} seeds: the study ends where each other arm is better or worse than "
                f"{study.reference_arm}, else with its last seed; p values are multiplied by {len(study.looks)}"
            )
        yield f"hashes: {', '.join(f'{name} {value}' for name, value in self.facts.items())}"

    def describe_training(self) -> Iterator[str]:
        """Yield the training steps and learning rates of the small runner, and whether they are low."""
        search, ordered = self.study.search, sorted(self.steps, key=lambda arm: self.steps[arm])
        least, most = ordered[0], ordered[-1]
        steps, searched = f"{self.steps[least]}", search is not None and search.key.endswith("actor.optim.lr")
        if self.steps[least] < self.steps[most]:
            steps = f"{steps} ({least}) to {self.steps[most]} ({most})"
        rate = "by the search" if searched else " and ".join(f"{one:g}" for one in self.rates)
        before = "" if searched or search is None else " before the search"
        yield (
            f"at least {steps} training steps a run{before}, more if episodes end early or early limits are short; "
            f"learning rate {rate}"
        )
        if self.steps[least] < FEW_STEPS:
            yield (
                f"{self.steps[least]} steps may be too few to learn: raise budget_turns, or lower data.train_batch_size"
            )
        if not searched and self.rates[0] < LOW_RATE:
            yield f"a learning rate of {self.rates[0]:g} is low for the small policy: add search, or set 1e-4 or more"

    def describe_least_seeds(self) -> Iterator[str]:
        """Yield a line if the study has too few seeds for a verdict of better or worse."""
        least = least_seeds(len(self.study.arms))
        if len(self.study.seeds) < least and self.study.stop.rule == "fixed":
            yield f"no arm can be better or worse with fewer than {least} seeds"

    def describe_seen(self) -> Iterator[str]:
        """Yield a line if arms are evaluated on tasks that they train on."""
        if len(self.seen) == len(self.study.arms):
            yield "evaluated on its training tasks: success is no measure of generalization"
        elif self.seen:
            yield f"evaluated on training tasks, so no measure of generalization: {', '.join(self.seen)}"

    def describe_arms(self) -> Iterator[str]:
        """Yield the arms with what they change, and the strata with what they set, line by line."""
        study, first = self.study, next(iter(self.study.arms))
        for arm in study.arms:
            changed = {key: value for stratum in study.strata for key, value in self.changes[stratum, arm].items()}
            said = ", ".join(f"{key}={value}" for key, value in changed.items())
            base = ", ".join(study.arms[first]) or "the recipe as it is"
            compared = "; the others are compared with it" if arm == study.reference_arm else ""
            yield f"arm {arm}: {base if arm == first else said}{compared}"
        yield from (f"stratum {name}: {', '.join(shared)}" for name, shared in study.strata.items() if shared)


def make_plan(file: Path) -> Plan:
    """Read and check a study.

    Raises:
        ConfigError: a key, a value, the recipe or an override is not allowed; an arm changes more than it says; two
            arms are the same, or are evaluated differently; or the small runner ignores what an arm, a stratum or the
            search changes.
    """
    study, configs, files, modules = read_study(file), {}, set[str](), set[str]()
    steps, rates, by_group = dict[str, int](), set[float](), set[str]()
    evaluations: dict[str, dict[str, dict[str, Any]]] = {}
    recipe = (file.parent / study.recipe).resolve()
    if not recipe.is_file():
        raise ConfigError(f"study.recipe={study.recipe!r} does not exist: {recipe}. The path is relative to {file}.")
    first, changes = next(iter(study.arms)), dict[tuple[str, str], dict[str, Any]]()
    tiny = {arm: study.tiny_of(arm) for arm in study.arms}
    searched = [f"{study.search.key}={value:g}" for value in study.search.values] if study.search else []
    for stratum, shared in study.strata.items():
        for arm in study.arms:
            own = study.of_recipe(arm)
            if taken := {named(one) for one in (*shared, *own)} & {*OWN_KEYS, study.search.key if study.search else ""}:
                raise ConfigError(f"arm {arm} sets {min(taken)}, which the command sets for each run. Leave it out.")
            try:
                configs[stratum, arm] = compose_training(recipe, [*shared, *own], resolve=False)
                env = study_env(configs[stratum, arm])
                evaluations.setdefault(stratum, {})[arm] = evaluation(env, study.runner)
                count = least_steps(configs[stratum, arm], env, study)
                steps[arm] = min(count, steps.get(arm, count))
                rates.add(learning_rate(configs[stratum, arm]))
                check_small_model(study.tiny, tiny[arm], env)
                check_groups(configs[stratum, arm], env, study.runner)
                modules |= {load_environment(env.env.name, study.runner), *own_algorithms(configs[stratum, arm])}
                files |= {*named_files(configs[stratum, arm], env)}
                by_group |= {arm} if env.horizon.by_group else set()
                for one in searched if arm == first else searched[:1]:  # it may have no effect in one arm alone
                    study_env(compose_training(recipe, [*shared, *own, one], resolve=False))
            except ConfigError as error:
                raise ConfigError(f"arm {arm}, stratum {stratum}: {error}") from error
    for (stratum, arm), config in configs.items():
        changes[stratum, arm] = differing(configs[stratum, first], config)
        changes[stratum, arm] |= {
            f"tiny.{name}": now for name in OF_ARMS if (now := getattr(tiny[arm], name)) != getattr(tiny[first], name)
        }
        check_says_all(arm, changes[stratum, arm], [*study.arms[first], *study.arms[arm]])
    for one, other in combinations(study.arms, 2):
        if all(changes[stratum, one] == changes[stratum, other] for stratum in study.strata):
            raise ConfigError(f"arms {one} and {other} have the same config. Change the overrides of one, or drop it.")
    for evaluated in evaluations.values():
        check_evaluated_alike(evaluated)
    ignored = check_small_runner(study, recipe, changes) if study.runner == "tiny" else []
    files |= {one.later_tasks for one in tiny.values() if one.later_tasks}
    listed = b"".join(Path(one).read_bytes() for one in sorted(files) if Path(one).is_file())
    facts = {
        "file": short_hash(file.read_bytes()),
        "configs": short_hash(json.dumps([*configs.values()], sort_keys=True, default=str).encode() + listed),
        "code": source_digest(sorted(modules)),
    }
    seen = {arm: None for (_, arm), config in configs.items() if trains_on_tested(config, tiny[arm].later_tasks)}
    rest = ([*seen], ignored, steps, sorted(rates), sorted(by_group))
    return Plan(study, file.resolve(), recipe, changes, facts, *rest)


def check_says_all(arm: str, changed: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Check that each difference of an arm is named by an override, of it or of the first arm.

    Raises:
        ConfigError: a key differs that no override names.
    """
    said = {named(override) for override in overrides}
    silent = [
        f"{key}={value}"
        for key, value in changed.items()
        if key not in FOLLOWING and not any(is_within(key, one) for one in said)
    ]
    if silent:
        raise ConfigError(
            f"arm {arm} differs from the first arm in more than it says: {', '.join(silent[:5])}. Name each key in its "
            "overrides, or in those of the first arm, so that a reader of the file sees it."
        )
