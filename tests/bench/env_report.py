"""Tables of `make bench-envs`, and the targets that the measurements meet."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.bench.env_alone import InProcess, StartTimes, Waiting
from tests.bench.env_play import Window
from tests.bench.report import Target
from verl_agent.envs.hosts.slot import usable_cores

RECORDED = {
    ("textcraft", 1): "580-860",
    ("textcraft", 8): "840-865",
    ("textcraft", 32): "1,080-1,100",
    ("babyai", 1): "133-143",
    ("babyai", 8): "286-314",
    ("babyai", 32): "207-268",
    ("scienceworld", 1): "2-6",
    ("scienceworld", 8): "6",
}
"""Steps per second of AgentGym's own servers, measured once on two cores of another machine."""
MIN_RATIOS = {("textcraft", 32): 3.0, ("babyai", 8): 5.0, ("scienceworld", 8): 15.0}
"""Smallest ratio to the reference, by environment and number of clients."""
MAX_MEMORY = 0.25
MIN_STEPS = {"babyai": 1500.0, "scienceworld": 100.0}
MIN_VALID = 0.95
MAX_RELATIVE_COST = 1.0
MANY_SESSIONS = ("textcraft", "babyai")


@dataclass(frozen=True, slots=True)
class Pair:
    """Measurements of `verl-agent serve` and of the reference server, in alternating windows.

    Attributes:
        env: name of the environment.
        clients: number of concurrent sessions.
        ours: windows on `verl-agent serve`.
        theirs: windows on the reference server, each after the window of `ours` with the same index; empty if the
            reference was not measured.
        ours_mb: memory of all processes of `verl-agent serve` in MiB, as sums of RSS and of PSS.
        theirs_mb: memory of the reference server in MiB, as sums of RSS and of PSS.
    """

    env: str
    clients: int
    ours: Sequence[Window]
    theirs: Sequence[Window]
    ours_mb: tuple[float, float]
    theirs_mb: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Median ratio of neighbouring windows in steps per second."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return median(mine.steps_per_s / other.steps_per_s for mine, other in pairs) if self.theirs else 0.0

    @property
    def most_ratio(self) -> float:
        """Ratio of the most steps per second that the processor time of both allows."""
        whole = [sum(windows[1:], windows[0]) for windows in (self.ours, self.theirs)]
        most = [one.most_steps_per_s(usable_cores()) for one in whole]
        return most[0] / most[1]


def show(
    console: Console,
    pairs: Sequence[Pair],
    alone: Sequence[InProcess],
    starts: Sequence[StartTimes],
    waits: Sequence[Waiting],
) -> list[Target]:
    """Print tables and targets, and return the targets."""
    console.print(speeds(pairs))
    console.print(profile(pairs))
    console.print(in_process(alone))
    console.print(start_times(starts))
    for one in waits:
        console.print(
            f"{one.sessions} sessions whose steps wait 1 s, {one.steps} steps each, over HTTP: "
            f"{one.valid} without an error, "
            f"{one.seconds:.1f} s in total, of which a session waits {one.alone_s:.0f} s."
        )
    targets = judge(pairs, alone, starts, waits)
    for target in targets:
        console.print(str(target), style="green" if target.met else "red", highlight=False)
    return targets


def judge(
    pairs: Sequence[Pair], alone: Sequence[InProcess], starts: Sequence[StartTimes], waits: Sequence[Waiting]
) -> list[Target]:
    """Return the targets of the environments that were measured."""
    targets = []
    for pair in pairs:
        min_ratio = MIN_RATIOS.get((pair.env, pair.clients))
        if min_ratio and pair.theirs:
            name = f"{pair.env}, {pair.clients} clients: steps per second divided by the reference's"
            targets.append(Target(name, pair.ratio, min_ratio, at_least=True))
            if pair.env == "scienceworld":
                part = pair.ours_mb[1] / pair.theirs_mb[1]
                targets.append(
                    Target(f"{pair.env}, {pair.clients} clients: memory divided by the reference's", part, MAX_MEMORY)
                )
    for one in alone:
        targets.append(
            Target(f"{one.env} in process: steps per second", one.steps_per_s, MIN_STEPS[one.env], at_least=True)
        )
    for start in starts:
        if start.env in MANY_SESSIONS and start.server == "ours":
            name = f"{start.env}: seconds for each of {start.sessions} sessions divided by the seconds of a single one"
            targets.append(Target(name, start.relative_cost, MAX_RELATIVE_COST))
    for wait in waits:
        targets.append(
            Target("share of waiting sessions without an error", wait.valid / wait.sessions, MIN_VALID, True)
        )
    return targets


def speeds(pairs: Sequence[Pair]) -> Table:
    """Return the table of steps per second and memory of both servers."""
    table = Table(title="Whole sessions over HTTP: steps per second with resets, MiB as RSS / PSS of all processes")
    for title in (
        "environment",
        "clients",
        "ours",
        "reference",
        "ratio",
        "ratio at most",
        "AgentGym's own",
        "ours, MiB",
        "reference, MiB",
    ):
        table.add_column(title, justify="left" if title == "environment" else "right")
    for pair in pairs:
        recorded = RECORDED.get((pair.env, pair.clients), "-")
        mine, theirs = _rate(pair.ours), _rate(pair.theirs) if pair.theirs else "-"
        ratios = (f"{pair.ratio:.1f}", f"{pair.most_ratio:.1f}") if pair.theirs else ("-", "-")
        memory = _mb(pair.theirs_mb) if pair.theirs else "-"
        table.add_row(pair.env, str(pair.clients), mine, theirs, *ratios, recorded, _mb(pair.ours_mb), memory)
    return table


def profile(pairs: Sequence[Pair]) -> Table:
    """Return the table of durations and processor times, and of the most steps per second without other load."""
    table = Table(
        title="Milliseconds: median / 95th percentile, then processor time of a step with its share of resets"
    )
    titles = (
        "",
        "clients",
        "",
        "step",
        "reset",
        "client",
        "server",
        "its hosts",
        "cores used",
        "at most, steps/s",
        "solved",
    )
    for title in titles:
        table.add_column(title, justify="left" if not title else "right")
    for pair in pairs:
        for name, windows in (("ours", pair.ours), ("reference", pair.theirs)):
            if not windows:
                continue
            whole = sum(windows[1:], windows[0])
            cores = (whole.client_cores, whole.server_cores, whole.host_cores)
            table.add_row(
                pair.env,
                str(pair.clients),
                name,
                _ms(whole.step_ms),
                _ms(whole.reset_ms),
                *(f"{1000 * used / whole.steps_per_s:.2f}" for used in cores),
                f"{sum(cores):.2f}",
                f"{whole.most_steps_per_s(usable_cores()):,.0f}",
                f"{whole.solved}/{whole.ended}",
            )
    return table


def in_process(alone: Sequence[InProcess]) -> Table:
    """Return the table of the measurements without a server."""
    table = Table(title="One thread in process")
    for title in ("environment", "steps per second", "slowest round", "reset, ms"):
        table.add_column(title, justify="left" if title == "environment" else "right")
    for one in alone:
        table.add_row(one.env, f"{one.steps_per_s:,.0f}", f"{one.slowest:,.0f}", f"{one.reset_ms:.1f}")
    return table


def start_times(starts: Sequence[StartTimes]) -> Table:
    """Return the table of sessions that were created at once."""
    table = Table(title="Seconds to the first observation, sessions created at once")
    titles = (
        "environment",
        "server",
        "sessions",
        "all, cold",
        "half, warm",
        "all, warm",
        "one alone, ms",
        "a session, ms",
    )
    for title in titles:
        table.add_column(title, justify="left" if title in ("environment", "server") else "right")
    for one in starts:
        seconds = (f"{value:.2f}" for value in (one.cold_s, one.warm_s, one.warm_last_s))
        each = 1000 * one.warm_last_s / one.sessions
        table.add_row(one.env, one.server, str(one.sessions), *seconds, f"{1000 * one.alone_s:.1f}", f"{each:.1f}")
    return table


def _rate(windows: Sequence[Window]) -> str:
    rates = [window.steps_per_s for window in windows]
    return f"{median(rates):,.0f}" if min(rates) > 20 else f"{median(rates):.1f}"


def _ms(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.2f} / {pair[1]:.2f}"


def _mb(pair: tuple[float, float]) -> str:
    return f"{pair[0]:,.0f} / {pair[1]:,.0f}"
