"""Result of an attack on the reward of an environment, as lines."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from verl_agent.envs.testing.attacks import IDLE
from verl_agent.envs.testing.statistics import upper_limit

RANDOM_EPISODES = 8
"""Random episodes of each task."""
LEVEL = 0.02
"""Probability of a finding by chance, divided by the number of policies that were tried."""
LATE = 5
"""Factor of the turn limit with which a few tasks are played idly, for rewards that come late."""
MOST_OF_A_KIND = 3
"""Most findings of one kind."""
RIVALS = ("random", *IDLE)
Returns = Mapping[str, Sequence[float]]
"""Returns by task."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Way to earn a reward without solving tasks: its kind, and a sentence with numbers."""

    kind: str
    text: str


@dataclass(slots=True)
class AttackReport:
    """Result of `attack_env`.

    Attributes:
        tasks: number of tasks that were attacked.
        of: number of tasks of the environment.
        turns: turn limit.
        texts: number of texts that were tried as answers, in all their forms.
        solution: mean return of the demonstrations, or the return of a success.
        returns: returns by task of each policy that was played on all tasks, by its name.
        above: number of tasks on which any policy without the demonstration earned more than all random episodes.
        notes: measurements that are no finding, and what was not tried.
    """

    tasks: int = 0
    of: int = 0
    turns: int = 0
    texts: int = 0
    solution: float = 0.0
    returns: dict[str, Returns] = field(default_factory=dict)
    above: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def find(self, kind: str, text: str) -> None:
        """Add a finding; of one kind, `MOST_OF_A_KIND` at most."""
        if sum(one.kind == kind for one in self.findings) < MOST_OF_A_KIND:
            self.findings.append(Finding(kind, text))

    @property
    def means(self) -> dict[str, float]:
        """Mean return of each policy."""
        return {name: fmean(one for values in tasks.values() for one in values) for name, tasks in self.returns.items()}

    def lines(self, mean: Callable[[Returns], Any] | None = None) -> Iterator[str]:
        """Yield the returns, the findings, what is no finding, and what was not tried.

        Args:
            mean: returns the mean return over tasks with its interval; None for the mean alone.
        """
        means = self.means
        strongest = sorted((name for name in means if name.startswith("always")), key=means.__getitem__)
        shown = [*RIVALS, *strongest[-3:], "demonstration"]
        told = {name: mean(self.returns[name]) if mean else f"{means[name]:.3f}" for name in shown if name in means}
        yield f"mean returns, where a solution has {self.solution:.3f}:"
        yield from (f"      {name} {text}" for name, text in told.items())
        for finding in self.findings:
            yield f"FAIL  {finding.kind}: {finding.text}."
        for note in self.notes:
            yield f"note  {note}."
        if not self.tasks:
            return
        limit = upper_limit(self.above, self.tasks)
        yield (
            f"{len(self.returns)} policies and {self.texts} texts on {self.tasks} of {self.of} tasks, {self.turns} "
            f"turns each. They may earn more than random actions on up to {limit:.1%} of the tasks (95 % limit)."
        )
        yield (
            f"Not tried: secrets that no message, task or list of `attacks.py` contains, plans of several such texts, "
            f"rewards after turn {LATE * self.turns}, and flaws that pay no more than random actions earn."
        )

    @property
    def enough(self) -> bool:
        """True if a policy that earns more than the random episodes of every task would be a finding."""
        return (RANDOM_EPISODES + 1.0) ** -self.tasks < LEVEL / max(1, len(self.returns))
