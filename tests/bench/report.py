"""Tables of the rollout benchmark, and the targets that the measurements meet."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tests.bench.measure import Comparison, EpisodeTimes, Overhead

MIN_SPEEDUP = 1.6
MAX_OVER_LONGEST = 1.1
MAX_TURN_MS = 2.0


@dataclass(frozen=True, slots=True)
class Target:
    """Target of a measurement.

    Attributes:
        name: description of the measurement.
        value: worst value of all seeds or repeats.
        bound: bound of the value, in the same unit.
        at_least: true if the bound is a minimum, false if it is a maximum.
    """

    name: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """True if the value is within its bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        relation = "at least" if self.at_least else "at most"
        return f"{self.name}: {self.value:.2f}, target {relation} {self.bound:g}: {'MET' if self.met else 'MISSED'}"


def show(
    console: Console, comparisons: Sequence[Comparison], overheads: Sequence[Overhead], *, speed: float, load: float
) -> list[Target]:
    """Print tables and targets, and return the targets.

    Args:
        console: console to print to.
        comparisons: one comparison for each seed.
        overheads: overheads; the first one is that of the product's sessions.
        speed: divisor of all latencies.
        load: load average of the machine before the measurement.
    """
    console.print(makespans(comparisons))
    console.print(episode_ends(comparisons))
    console.print(turn_costs(overheads))
    console.print(
        f"Latencies were divided by {speed:g}, but the cost of the loops was not. It therefore counts {speed:g} times "
        "as much in these ratios as in a real run. The lock-step loop is faster than AgentGym-RL, because it resets "
        "its environments concurrently and AgentGym-RL creates and resets them one after another. "
        f"Load average of the machine before the measurement: {load:.1f}.\n"
    )
    targets = judge(comparisons, overheads)
    for target in targets:
        console.print(str(target), style="green" if target.met else "red", highlight=False)
    return targets


def judge(comparisons: Sequence[Comparison], overheads: Sequence[Overhead]) -> list[Target]:
    """Return the targets of the rollout, for the worst seed and the slowest repeat."""
    return [
        Target(
            "makespan of lock-step divided by ours, worst seed",
            min(comparison.speedup for comparison in comparisons),
            MIN_SPEEDUP,
            at_least=True,
        ),
        Target(
            "our makespan divided by the longest episode, worst seed",
            max(comparison.over_longest for comparison in comparisons),
            MAX_OVER_LONGEST,
        ),
        Target("milliseconds of our loop for each turn, slowest repeat", overheads[0].wall_ms_worst, MAX_TURN_MS),
    ]


def makespans(comparisons: Sequence[Comparison]) -> Table:
    """Return the table of makespans: a row for each seed, and the worst ratios."""
    table = Table(title="Makespan, seconds as measured")
    table.add_column("seed")
    for title in ("turns", "ours", "lock-step", "ratio", "longest, planned", "longest, alone", "ours / longest"):
        table.add_column(title, justify="right")
    for one in comparisons:
        seconds = (one.longest_drawn_s, one.longest_alone_s)
        table.add_row(
            str(one.seed),
            str(one.turns),
            f"{one.ours.max:.2f}",
            f"{one.lock_step.max:.2f}",
            f"{one.speedup:.2f}",
            *(f"{value:.2f}" for value in seconds),
            f"{one.over_longest:.3f}",
        )
    table.add_section()
    speedup = min(one.speedup for one in comparisons)
    over_longest = max(one.over_longest for one in comparisons)
    table.add_row("worst", "", "", "", f"{speedup:.2f}", "", "", f"{over_longest:.3f}", style="bold")
    return table


def episode_ends(comparisons: Sequence[Comparison]) -> Table:
    """Return the table of the end times of single episodes."""
    table = Table(title="Seconds from the start of the batch to the end of an episode")
    table.add_column("seed")
    table.add_column("loop")
    for title in ("mean", "median", "90th percentile", "maximum"):
        table.add_column(title, justify="right")
    for one in comparisons:
        table.add_row(str(one.seed), "ours", *_times(one.ours))
        table.add_row("", "lock-step", *_times(one.lock_step), end_section=True)
    return table


def turn_costs(overheads: Sequence[Overhead]) -> Table:
    """Return the table of the loop's cost without latency."""
    table = Table(title="Our loop without any latency, milliseconds for each turn")
    table.add_column("sessions")
    for title in ("median", "slowest repeat", "processor time"):
        table.add_column(title, justify="right")
    for one in overheads:
        table.add_row(one.sessions, *(f"{value:.3f}" for value in (one.wall_ms, one.wall_ms_worst, one.cpu_ms)))
    return table


def _times(times: EpisodeTimes) -> list[str]:
    return [f"{value:.2f}" for value in (times.mean, times.p50, times.p90, times.max)]
