"""The tables of `make bench-envs`, and which targets are met."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.bench.env_alone import FirstLook, InProcess, Waiting
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
"""Steps a second of AgentGym's own servers, measured once on two cores of another machine."""
WANTED = {("textcraft", 32): 3.0, ("babyai", 8): 5.0, ("scienceworld", 8): 15.0}
"""Ratios wanted, by environment and clients."""
MAX_MEMORY = 0.25
MIN_STEPS = {"babyai": 1500.0, "scienceworld": 100.0}
MIN_SOUND = 0.95
MAX_FLAT = 1.0
FLAT = ("textcraft", "babyai")


@dataclass(frozen=True, slots=True)
class Pair:
    """Ours and the reference's way, played in turns.

    Attributes:
        env: name of the environment.
        clients: sessions at once.
        ours: our windows.
        theirs: the reference's, each right after ours of the same number; none where it was not run.
        ours_mb: MiB of our server with all its processes, as the sum of RSS and of PSS.
        theirs_mb: the same for the reference's.
    """

    env: str
    clients: int
    ours: Sequence[Window]
    theirs: Sequence[Window]
    ours_mb: tuple[float, float]
    theirs_mb: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Median of the ratios of neighbouring windows."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return median(mine.steps_per_s / other.steps_per_s for mine, other in pairs) if self.theirs else 0.0

    @property
    def most_ratio(self) -> float:
        """The same of what the processor time of both would allow, if nobody else used the cores."""
        whole = [sum(windows[1:], windows[0]) for windows in (self.ours, self.theirs)]
        most = [one.most_steps_per_s(usable_cores()) for one in whole]
        return most[0] / most[1]


def show(
    console: Console,
    pairs: Sequence[Pair],
    alone: Sequence[InProcess],
    looks: Sequence[FirstLook],
    waits: Sequence[Waiting],
) -> list[Target]:
    """Print everything; returns the targets."""
    console.print(speeds(pairs))
    console.print(profile(pairs))
    console.print(in_process(alone))
    console.print(first_looks(looks))
    for one in waits:
        console.print(
            f"{one.sessions} sessions whose steps wait 1 s, {one.steps} steps each, over HTTP: {one.valid} sound, "
            f"{one.seconds:.1f} s in all, {one.alone_s:.0f} s of them waiting."
        )
    targets = judge(pairs, alone, looks, waits)
    for target in targets:
        console.print(str(target), style="green" if target.met else "red", highlight=False)
    return targets


def judge(
    pairs: Sequence[Pair], alone: Sequence[InProcess], looks: Sequence[FirstLook], waits: Sequence[Waiting]
) -> list[Target]:
    """The targets of the environments, as far as they were measured."""
    targets = []
    for pair in pairs:
        wanted = WANTED.get((pair.env, pair.clients))
        if wanted and pair.theirs:
            name = f"{pair.env}, {pair.clients} clients: steps a second over the reference's"
            targets.append(Target(name, pair.ratio, wanted, at_least=True))
            if pair.env == "scienceworld":
                part = pair.ours_mb[1] / pair.theirs_mb[1]
                targets.append(
                    Target(f"{pair.env}, {pair.clients} clients: memory over the reference's", part, MAX_MEMORY)
                )
    for one in alone:
        targets.append(
            Target(f"{one.env} in process: steps a second", one.steps_per_s, MIN_STEPS[one.env], at_least=True)
        )
    for look in looks:
        if look.env in FLAT and look.server == "ours":
            name = f"{look.env}: seconds a session among {look.sessions} over seconds of one alone"
            targets.append(Target(name, look.flat, MAX_FLAT))
    for wait in waits:
        targets.append(
            Target("sessions that only wait: part that is sound", wait.valid / wait.sessions, MIN_SOUND, True)
        )
    return targets


def speeds(pairs: Sequence[Pair]) -> Table:
    """Steps a second and memory, ours beside the reference's way."""
    table = Table(title="Whole sessions over HTTP: steps a second with resets, MiB as RSS / PSS of all processes")
    for title in (
        "environment",
        "clients",
        "ours",
        "reference",
        "ratio",
        "of at most",
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
    """Where the time goes, and what would be possible if nobody else used the cores."""
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
    """Without any server."""
    table = Table(title="One thread in process")
    for title in ("environment", "steps a second", "slowest round", "reset, ms"):
        table.add_column(title, justify="left" if title == "environment" else "right")
    for one in alone:
        table.add_row(one.env, f"{one.steps_per_s:,.0f}", f"{one.slowest:,.0f}", f"{one.reset_ms:.1f}")
    return table


def first_looks(looks: Sequence[FirstLook]) -> Table:
    """Sessions created at once."""
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
    for one in looks:
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
