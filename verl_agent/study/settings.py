"""File of a study: its question, arms, seeds, budget and rules, as one frozen object."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_agent.config.checks import check_needs
from verl_agent.config.composing import read_yaml
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.sections import STRICT, Needs, section
from verl_agent.study.inference import first_decision, least_seeds

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
STOPS, TINY = Needs("study.stop.rule", "successive"), Needs("study.runner", "tiny")
MEASURES = {
    "area": "mean success over environment turns, up to the budget",
    "final": "success at the end of the budget",
    "gain": "success at the end minus success at the start",
    "best": "best success of any evaluation",
    "fall": "best success minus success at the end",
    "beyond": "success at the end within `tiny.beyond_turns` turns",
    "turns": "turns of the tasks that are solved at the end",
}
"""Measures of a run."""
LOWER_IS_BETTER = ("fall",)
OF_ARMS = {"fresh_optimizer": "true", "later_tasks": "SPLIT_OR_FILE"}
"""Keys of `tiny` that an arm may set, with values for messages."""
POINTS, DONE = "points.jsonl", "done.json"
"""Files of a run: its evaluations, and a mark that it has ended."""


@dataclass(frozen=True, slots=True, config=STRICT)
class Search:
    """Search of one setting for each arm, on seeds that the study does not use."""

    values: Annotated[Sequence[float], Field(min_length=2)]
    """Values to try; the one with the best mean of the primary measure is used."""
    seeds: Annotated[Sequence[int], Field(min_length=1)]
    """Seeds of the search."""
    key: str = "actor_rollout_ref.actor.optim.lr"
    """Dotted key of the setting."""
    budget_turns: Count | None = None
    """Environment turns of a run of the search; null for the budget of the study."""

    def __post_init__(self) -> None:
        shown = [f"{value:g}" for value in self.values]  # names of folders
        if len({*shown}) < len(shown):
            raise ConfigError(
                f"study.search.values={list(self.values)} has {max(shown, key=shown.count)} twice; six digits count. "
                "Give each once."
            )

    def turns(self, budget: int) -> int:
        """Return the environment turns of a run of the search in a study with a budget."""
        return self.budget_turns or budget


@dataclass(frozen=True, slots=True, config=STRICT)
class StopRule:
    """Rule by which the study ends."""

    rule: Literal["fixed", "successive", "looks"] = "fixed"
    """`fixed` plays all seeds of all arms. `successive` compares all arms after each block of seeds, and drops those
    that are worse than another one (AdaStop, arXiv 2306.10882). `looks` ends the study after one of `looks` at which
    each other arm is better or worse than the reference."""
    block: Annotated[Count, STOPS] = 5
    """Seeds of a block, with `successive`."""
    alpha: Annotated[float, Field(gt=0, lt=1), STOPS] = 0.05
    """Probability of any wrong decision between equal arms, over all arms and blocks."""
    looks: Annotated[Sequence[Count], Needs("study.stop.rule", "looks")] = ()
    """Numbers of seeds after which the study may end, at least two, growing; the last one is that of all seeds. p
    values are multiplied by the number of looks (Bonferroni), and between looks there are no verdicts."""


@dataclass(frozen=True, slots=True, config=STRICT)
class TinySettings:
    """Small llama, its warm start on episodes of the oracle, and its evaluation."""

    width: Count = 128
    """Width of the hidden states, an even multiple of `heads`."""
    layers: Count = 3
    """Number of layers."""
    heads: Count = 4
    """Attention heads of a layer."""
    warm_tasks: Count = 256
    """Training tasks whose oracle episodes the warm start imitates."""
    warm_updates: Annotated[int, Field(ge=0)] = 200
    """Optimizer steps of the warm start; 0 for random weights."""
    warm_batch: Count = 32
    """Episodes of such a step."""
    warm_rate: Rate = 2e-3
    """Learning rate of the warm start."""
    eval_tasks: Count = 256
    """Most held-out tasks of an evaluation; the same ones for all arms of a seed."""
    eval_samples: Count = 1
    """Episodes of each of these tasks."""
    beyond_turns: Count | None = None
    """Turn limit of the last evaluation, to measure success beyond the trained horizon; null for none."""
    fresh_optimizer: bool = False
    """Begin each stage of the turn limit with a new optimizer, and with the present policy as reference of the KL loss
    (ProRL, arXiv 2507.17512). An arm may set it: `tiny.fresh_optimizer=true`."""
    later_tasks: Annotated[str, Field(min_length=1)] | None = None
    """Split or file of the training tasks of the second half of the budget, in place of `env.train_tasks`; null for no
    change. An arm may set it."""

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise ConfigError(
                f"study.tiny.width={self.width} is not allowed. Allowed with tiny.heads={self.heads}: multiples of "
                f"{2 * self.heads}."
            )


@dataclass(frozen=True, slots=True, config=STRICT)
class Study:
    """Study of one question."""

    question: str
    """Question that the study answers."""
    recipe: str
    """Recipe of reinforcement learning that all arms share, relative to the file of the study."""
    arms: Mapping[str, Sequence[str]]
    """Overrides of each arm."""
    seeds: Annotated[Sequence[int], Field(min_length=1)]
    """Seeds, the same ones for all arms."""
    budget_turns: Count
    """Environment turns of training of each run."""
    strata: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"all": []})
    """Overrides of each stratum, such as other tasks. Each has a run of each arm and seed."""
    measure: str = "area"
    """Primary measure, on which verdict and stopping rule are based."""
    margin: Rate = 0.05
    """Largest difference of the primary measure that counts as none."""
    points: Annotated[int, Field(ge=2), TINY] = 10
    """Evaluations of a run after the first one."""
    reference: Annotated[str, Field(min_length=1)] | None = None
    """Arm with which the others are compared; null for the first one."""
    stop: StopRule = field(default_factory=StopRule)
    search: Search | None = None
    runner: Literal["tiny", "train"] = "tiny"
    """`tiny` trains a small llama in one process. `train` runs `verl-agent train`."""
    tiny: Annotated[TinySettings, TINY] = field(default_factory=TinySettings)

    def __post_init__(self) -> None:
        if len(self.arms) < 2:
            raise ConfigError(
                f"study.arms={list(self.arms)} is not allowed. Allowed: two or more names with overrides."
            )
        known = [name for name in MEASURES if name != "turns"]
        if self.measure not in MEASURES:
            raise ConfigError(f"study.measure={self.measure!r} does not exist. {did_you_mean(self.measure, known)}")
        if self.measure == "beyond" and (self.tiny.beyond_turns is None or self.runner != "tiny"):
            raise ConfigError("study.measure=beyond needs runner tiny and tiny.beyond_turns. Set both.")
        if self.measure == "turns":
            raise ConfigError(
                "study.measure=turns is not allowed: a policy that solves only easy tasks needs fewer turns for them. "
                "Choose final; a report with runner tiny has the turns besides."
            )
        if self.search and self.search.turns(self.budget_turns) > self.budget_turns:
            raise ConfigError(
                f"study.search.budget_turns={self.search.budget_turns} is not allowed. Allowed: at most "
                f"study.budget_turns={self.budget_turns}, or null for that."
            )
        if self.reference_arm not in self.arms:
            raise ConfigError(
                f"study.reference={self.reference!r} is no arm. {did_you_mean(self.reference_arm, self.arms)}"
            )
        self._check_looks()
        seeds, stop = len(self.seeds), self.stop
        if stop.rule == "successive" and first_decision(seeds, stop.block, stop.alpha) is None:
            allowed = [str(block) for block in range(1, seeds + 1) if first_decision(seeds, block, stop.alpha)]
            raise ConfigError(
                f"study.stop.block={stop.block} can tell no arms apart with {seeds} seeds and stop.alpha="
                f"{stop.alpha:g}. Allowed with these: {', '.join(allowed) or 'none'}. Change it, add seeds, or "
                "set stop.rule: fixed, for example to play one seed."
            )
        if len({*self.seeds}) < seeds:
            raise ConfigError(f"study.seeds={list(self.seeds)} has a seed twice. Give each once.")
        searched = self.search.seeds if self.search else ()
        if len({*self.seeds, *searched}) != seeds + len(searched):
            raise ConfigError(
                f"study.seeds={list(self.seeds)} and study.search.seeds={list(searched)} have a seed twice. Give each "
                "once: a setting that is chosen and measured on the same seeds looks better than it is."
            )
        if wrong := [one for one in (*self.arms, *self.strata) if not one.replace("_", "").replace("-", "").isalnum()]:
            raise ConfigError(f"the name {wrong[0]!r} is not allowed. Allowed: letters, digits, _ and -.")

    def _check_looks(self) -> None:
        """Check that looks grow up to all seeds, and that the first one can tell arms apart."""
        looks, seeds, arms = list(self.stop.looks), len(self.seeds), len(self.arms)
        least = least_seeds(arms, max(2, len(looks)))
        if self.stop.rule != "looks":
            return
        if seeds <= least:
            raise ConfigError(
                f"study.stop.rule=looks needs {least + 1} or more seeds with {arms} arms, got {seeds}: with fewer than "
                f"{least} no look can tell arms apart. Add seeds, or set stop.rule: fixed, which has one look."
            )
        if len(looks) < 2 or looks != sorted({*looks}) or looks[-1] != seeds or looks[0] < least:
            raise ConfigError(
                f"study.stop.looks={looks} is not allowed. Allowed: at least two growing numbers, the first one from "
                f"{least}, below which {arms} arms cannot be told apart, the last one {seeds}, the number of seeds. "
                "Add seeds, or set stop.rule: fixed, which has one look."
            )

    @property
    def reference_arm(self) -> str:
        """Arm with which the others are compared."""
        return self.reference or next(iter(self.arms))

    @property
    def looks(self) -> list[int]:
        """Numbers of seeds after which the study may end or drop arms, the last one that of all seeds."""
        seeds, block = len(self.seeds), self.stop.block
        if self.stop.rule == "successive":
            return [min(start + block, seeds) for start in range(0, seeds, block)]
        return list(self.stop.looks) or [seeds]

    def of_recipe(self, arm: str) -> list[str]:
        """Return the overrides of an arm that are those of the recipe."""
        return [one for one in self.arms[arm] if not is_of_tiny(one)]

    def tiny_of(self, arm: str) -> TinySettings:
        """Return the settings of the small model of an arm.

        Raises:
            ConfigError: the arm sets a key or a value that is not allowed or holds for all arms, or has another runner.
        """
        own = dict[str, Any]()
        for override in filter(is_of_tiny, self.arms[arm]):
            key, _, text = override.removeprefix("tiny.").partition("=")
            if self.runner != "tiny":
                raise ConfigError(
                    f"arm {arm} sets {override}, which has no effect with study.runner={self.runner!r}. Leave it out, "
                    "or set study.runner: tiny."
                )
            if key not in OF_ARMS or not text:
                allowed = " and ".join(f"tiny.{name}={value}" for name, value in OF_ARMS.items())
                raise ConfigError(f"arm {arm} sets {override}, which is not allowed. Allowed of tiny: {allowed}.")
            own[key] = {"true": True, "false": False, "null": None}.get(text, text)
            if getattr(self.tiny, key) == own[key]:
                raise ConfigError(f"arm {arm} sets {override}, which holds for all arms. Remove it.")
        return section(f"arm {arm}: study.tiny", TinySettings, {**asdict(self.tiny), **own})


def is_of_tiny(override: str) -> bool:
    """Return True if an override is one of the small model."""
    return override.lstrip("+~").startswith("tiny.")


def read_study(file: Path) -> Study:
    """Read the file of a study.

    Raises:
        ConfigError: it cannot be read, or a key or value is not allowed.
    """
    if not file.is_file():
        problem = "is a folder" if file.is_dir() else "does not exist"
        raise ConfigError(f"{str(file)!r} {problem}. Give the YAML file of a study, such as one of recipes/studies.")
    values = read_yaml(file, "Give each key once, and check indentation and brackets.")
    study = section("study", Study, values)
    check_needs("study", study)
    return study
