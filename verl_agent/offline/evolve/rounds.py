"""Rounds of exploring and learning as a folder: what is to be done, and what is done.

AgentEvol (arXiv 2406.04151, algorithm 1): the present policy plays tasks of several environments, what was rewarded is
kept and merged with the base set, and the base model learns from both, an episode counting by its reward.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.models.resolve import checkpoints, resolve_checkpoint
from verl_agent.offline.selection import WEIGHTS, EpisodeSource

STARTS, POOLS = ("base", "previous"), ("round", "all")
STATE, REPORT = "state.json", "evolve.json"


@dataclass(frozen=True, slots=True)
class Exploration:
    """One entry of `evolve.explore`.

    Attributes:
        recipe: of an evaluation, which says how the environment is played; its own tasks are those to validate on.
        tasks: to explore: a split, or a file with one task id a line.
        samples: episodes of each task and round.
        max_tasks: the first so many tasks; null for all.
    """

    recipe: str
    tasks: str
    samples: int = 4
    max_tasks: int | None = None

    def __post_init__(self) -> None:
        for name in ("samples", "max_tasks"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"evolve.explore: {name} must be >= 1, got {value}.")


@dataclass(frozen=True, slots=True)
class EvolveSettings:
    """Section `evolve`; see `verl_agent/config/agent_evolve.yaml`."""

    explore: Sequence[Exploration]
    learn: str
    output_dir: str
    rounds: int = 3
    start: str = "base"
    pool: str = "round"
    min_reward: float | None = None
    per_task: int | None = None
    weight: str = "reward"
    validate: bool = True
    seed: int = 1

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"evolve.rounds must be >= 1, got {self.rounds}.")
        if not self.explore:
            raise ConfigError("evolve.explore is empty. Name at least one {recipe, tasks} to explore.")
        for key, allowed in (("start", STARTS), ("pool", POOLS), ("weight", WEIGHTS)):
            value = getattr(self, key)
            if value not in allowed:
                raise ConfigError(f"evolve.{key}={value!r} is not known. {did_you_mean(value, allowed)}")
        if self.per_task is not None and self.per_task < 1:
            raise ConfigError(f"evolve.per_task must be >= 1 or null, got {self.per_task}.")

    def source(self, records: Sequence[str]) -> EpisodeSource:
        """What is kept of recorded episodes."""
        return EpisodeSource(False, records, self.min_reward, self.per_task, self.weight)


@dataclass(frozen=True, slots=True)
class Phase:
    """One command of a round.

    Attributes:
        round: from 0, where the base set alone is learnt.
        name: `explore`, `learn` or `validate`.
        place: number of the entry of `evolve.explore`; 0 for `learn`.
    """

    round: int
    name: str
    place: int = 0

    def __str__(self) -> str:
        """Its name in `state.json`."""
        return f"{self.round}/{self.name}/{self.place}"


def phases(settings: EvolveSettings) -> Iterator[Phase]:
    """All commands in their order."""
    for number in range(settings.rounds + 1):
        if number:
            yield from (Phase(number, "explore", place) for place in range(len(settings.explore)))
        yield Phase(number, "learn")
        if settings.validate:
            yield from (Phase(number, "validate", place) for place in range(len(settings.explore)))


@dataclass(slots=True)
class EvolveFolder:
    """The folder of all rounds.

    Attributes:
        root: where it is.
        names: one for each entry of `evolve.explore`, for folders.
        done: phases that have ended.
    """

    root: Path
    names: Sequence[str]
    done: set[str] = field(default_factory=set)

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Note what the rounds are, or refuse a folder that holds others; reads what is done.

        Raises:
            ConfigError: it holds rounds of another recipe.
        """
        path = self.root / STATE
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        before = found.get("identity", identity)
        changed = [key for key in sorted(before.keys() | identity.keys()) if before.get(key) != identity.get(key)]
        if changed:
            key = changed[0]
            raise ConfigError(
                f"{self.root} holds rounds of another recipe: {', '.join(changed)} changed ({key} was "
                f"{before.get(key)!r}, is {identity.get(key)!r}). Choose another evolve.output_dir, or delete the "
                "folder."
            )
        self.done = set(found.get("done", []))
        self._write(identity)

    def finish(self, phase: Phase, identity: Mapping[str, Any]) -> None:
        """Note that a phase has ended; what only going on inside it needed is removed."""
        if phase.name == "learn":
            for checkpoint in checkpoints(self.of(phase)).values():
                for shard in checkpoint.glob("*.pt"):
                    shard.unlink()
        self.done.add(str(phase))
        self._write(identity)

    def of(self, phase: Phase) -> Path:
        """The folder of one phase."""
        folder = self.root / f"round_{phase.round}" / phase.name
        return folder if phase.name == "learn" else folder / self.names[phase.place]

    def policy(self, number: int) -> Path:
        """Weights of the policy that a round ends with.

        Raises:
            ConfigError: it has none.
        """
        return resolve_checkpoint(self.of(Phase(number, "learn")))

    def explored(self, number: int, pool: str) -> list[str]:
        """Folders of the episodes that a round learns from besides the base set; none in round 0."""
        first = 1 if pool == "all" else max(number, 1)
        return [
            str(self.of(Phase(one, "explore", place)))
            for one in range(first, number + 1)
            for place in range(len(self.names))
        ]

    def _write(self, identity: Mapping[str, Any]) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        draft = self.root / f"{STATE}.tmp"
        state = {"identity": dict(identity), "done": sorted(self.done)}
        draft.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        draft.replace(self.root / STATE)


def folder_names(environments: Sequence[str]) -> list[str]:
    """One name for each environment; those that occur more than once are numbered."""
    return [
        name if environments.count(name) == 1 else f"{name}_{environments[:place].count(name) + 1}"
        for place, name in enumerate(environments)
    ]
