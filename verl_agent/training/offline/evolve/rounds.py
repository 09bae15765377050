"""Rounds of exploration and training: their settings, their phases in order, and the folder that holds them.

AgentEvol (arXiv 2406.04151, algorithm 1): the current policy plays tasks of several environments. Rewarded episodes are
merged with the base set, and the base model is trained on both; an explored episode counts by its reward.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from verl_agent.errors import ConfigError
from verl_agent.models.checkpoints import checkpoints
from verl_agent.models.resolve import resolve_checkpoint
from verl_agent.runs.identity import claim
from verl_agent.sections import OnResume, section, settings
from verl_agent.trace.provenance import read_json, write_json_atomically
from verl_agent.training.offline.selection import Tags, Weight

STATE, REPORT = "state.json", "evolve.json"
Count = Annotated[int, Field(ge=1)]


@settings("evolve.explore[]", base="agent_evolve")
class Exploration:
    """One entry of the list `evolve.explore`."""

    recipe: str
    """Evaluation recipe that defines how the environment is played; its own tasks are those to validate on."""
    tasks: str
    """Tasks to explore: a split, or a file with one task id a line."""
    samples: Count = 4
    """Number of episodes of each task in a round."""
    max_tasks: Count | None = None
    """Number of tasks, the first ones; null for all."""


@settings("evolve", base="agent_evolve")
class EvolveSettings:
    """Rounds of `verl-agent evolve`."""

    explore: Annotated[list[Exploration], Field(min_length=1)]
    """Environments to explore in each round."""
    learn: str
    """Recipe of supervised training; the episodes that it names are the base set."""
    output_dir: Annotated[str, OnResume("evolve")]
    """Folder of the rounds."""
    rounds: Annotated[Count, OnResume("evolve")] = 3
    """Number of rounds after round 0, which trains on the base set alone."""
    start: Literal["base", "previous"] = "base"
    """`base`: each round trains the model of `learn`; `previous`: the model of the round before."""
    pool: Literal["round", "all"] = "round"
    """`round`: train on the episodes of this round; `all`: on those of all rounds so far."""
    min_reward: float | None = None
    """Least return of a kept episode; null to keep those that solved their task."""
    per_task: Count | None = None
    """Most kept episodes of a task; null for all."""
    weight: Weight = "reward"
    """Weight of a kept episode, see `episodes.weight`."""
    labels: Annotated[Tags, OnResume("evolve")] = Field(default_factory=list)
    """Tags of explored episodes to leave out, such as `-bad`. Stop the rounds to label some."""
    validate: Annotated[bool, OnResume("evolve")] = True
    """True to evaluate each round's policy on the tasks of the recipes of `explore`."""
    seed: int = 1
    """Seed of exploration; each round derives its own."""

    def __post_init__(self) -> None:
        if wanted := [tag for tag in self.labels if not tag.startswith("-")]:
            raise ConfigError(
                f"evolve.labels={list(self.labels)}: episodes that were just explored have no tag {wanted[0]!r}. "
                f"Allowed: tags to leave out, such as -{wanted[0]}."
            )

    def selection(self, records: Sequence[str]) -> dict[str, Any]:
        """Return the section `episodes.explored` of supervised training."""
        names = ("min_reward", "per_task", "weight")
        return {"records": list(records), "labels": list(self.labels), **{name: getattr(self, name) for name in names}}


def evolve_settings(values: Mapping[str, Any]) -> EvolveSettings:
    """Return section `evolve` from plain values."""
    explore = values.get("explore")
    if isinstance(explore, list):
        explore = [section(f"evolve.explore[{index}]", Exploration, entry) for index, entry in enumerate(explore)]
    return section("evolve", EvolveSettings, {**values, "explore": explore})


@dataclass(frozen=True, slots=True)
class Phase:
    """One command of a round.

    Attributes:
        round: number of the round, from 0, which trains on the base set alone.
        name: `explore`, `learn` or `validate`.
        entry: index in `evolve.explore`; 0 for `learn`.
    """

    round: int
    name: str
    entry: int = 0

    def __str__(self) -> str:
        """Name in `state.json`."""
        return f"{self.round}/{self.name}/{self.entry}"


def phases(settings: EvolveSettings) -> Iterator[Phase]:
    """Yield all phases in order."""
    for number in range(settings.rounds + 1):
        if number:
            yield from (Phase(number, "explore", entry) for entry in range(len(settings.explore)))
        yield Phase(number, "learn")
        if settings.validate:
            yield from (Phase(number, "validate", entry) for entry in range(len(settings.explore)))


@dataclass(slots=True)
class EvolveFolder:
    """Folder of all rounds.

    Attributes:
        root: root directory of the rounds.
        names: folder name of each entry of `evolve.explore`.
        done: names of the phases that have ended.
    """

    root: Path
    names: Sequence[str]
    done: set[str] = field(default_factory=set)

    def claim(self, settings: Mapping[str, Any], may_change: Sequence[str]) -> None:
        """Lock the folder, record the settings of the rounds, and read which phases have ended."""
        path = self.root / STATE
        state = read_json(path, "Restore it, or choose another evolve.output_dir.") if path.is_file() else {}
        claim(
            self.root,
            settings,
            may_change,
            contents="rounds of another recipe",
            advice="Choose another evolve.output_dir, or delete the folder.",
        )
        self.done = set(state.get("done", []))

    def finish(self, phase: Phase) -> None:
        """Record that a phase has ended, and remove the files that only a resumed phase needs."""
        self.done.add(str(phase))
        write_json_atomically(self.root / STATE, {"done": sorted(self.done)})
        if phase.name == "learn":
            for checkpoint in checkpoints(self.of(phase)).values():
                for shard in checkpoint.glob("*.pt"):
                    shard.unlink()

    def of(self, phase: Phase) -> Path:
        """Return the folder of one phase."""
        folder = self.root / f"round_{phase.round}" / phase.name
        return folder if phase.name == "learn" else folder / self.names[phase.entry]

    def policy(self, number: int) -> Path:
        """Return the folder with the weights of a round's policy."""
        return resolve_checkpoint(self.of(Phase(number, "learn")))

    def explored(self, number: int, pool: str) -> list[str]:
        """Return the folders of explored episodes that a round trains on; empty in round 0."""
        first = 1 if pool == "all" else max(number, 1)
        return [
            str(self.of(Phase(earlier, "explore", entry)))
            for earlier in range(first, number + 1)
            for entry in range(len(self.names))
        ]


def folder_names(environments: Sequence[str]) -> list[str]:
    """Return a folder name for each environment; an environment that occurs more than once is numbered."""
    return [
        name if environments.count(name) == 1 else f"{name}_{environments[:index].count(name) + 1}"
        for index, name in enumerate(environments)
    ]
