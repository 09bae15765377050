"""Report of the rounds: success on held-out tasks by round, as a table and as JSON, and the best policy."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from verl_agent.evaluation.report import RATES, rates_cell
from verl_agent.results.comparison import Comparison, compare
from verl_agent.results.folder import RECORDS
from verl_agent.results.results import CategoryResult, summarize
from verl_agent.runs.best_checkpoint import Best, store_best
from verl_agent.terminal import Console, say, show_table, styled
from verl_agent.trace.provenance import write_result
from verl_agent.trace.record_files import read_records
from verl_agent.training.offline.evolve.prepare import Evolution
from verl_agent.training.offline.evolve.rounds import REPORT, Phase


@dataclass(frozen=True, slots=True)
class RoundResult:
    """Validation of one round's policy in one environment.

    Attributes:
        env: folder name of the environment.
        gain: differences in success and return to round 0, task by task; None in round 0.
    """

    round: int
    env: str
    result: CategoryResult
    gain: Comparison | None


def report_rounds(evolution: Evolution, console: Console) -> None:
    """Print and write the validations so far, and keep the best policy in `best/`."""
    folder = evolution.folder
    validated = [
        round_result(Phase(number, "validate", entry), evolution)
        for number in range(evolution.settings.rounds + 1)
        for entry in range(len(folder.names))
        if str(Phase(number, "validate", entry)) in folder.done
    ]
    if not validated:
        return
    show_table(console, rounds_table(validated))
    best = best_round(validated, len(folder.names))
    if best is not None:
        store_best(folder.policy(best.step).parent, best, folder.root)
        say(console, f"best: round {best.step}: {folder.root / 'best'}")
    facts = {"settings": asdict(evolution.settings), "rounds": [asdict(result) for result in validated]}
    say(console, f"rounds: {write_result(folder.root / REPORT, 1, facts)}")


def best_round(validated: Sequence[RoundResult], environments: int) -> Best | None:
    """Return the round with the highest mean success over all environments; the first of equal ones."""
    best: Best | None = None
    for number in sorted({one.round for one in validated}):
        rates = [one.result.success.mean for one in validated if one.round == number and one.result.success]
        if len(rates) == environments:
            candidate = Best(number, "success", sum(rates) / len(rates))
            best = candidate if candidate.better_than(best) else best
    return best


def round_result(phase: Phase, evolution: Evolution) -> RoundResult:
    """Return the result of one validation, and its gain on round 0."""
    first, folder = Phase(0, "validate", phase.entry), evolution.folder
    played = list(read_records(folder.of(phase) / RECORDS))
    overall: CategoryResult = summarize(played)[-1]
    gain: Comparison | None = None
    if phase.round and str(first) in folder.done:
        gain = compare(list(read_records(folder.of(first) / RECORDS)), played)[-1]
    return RoundResult(phase.round, folder.names[phase.entry], overall, gain)


def rounds_table(validated: Sequence[RoundResult]) -> Table:
    """Return a table with one row for each round and environment."""
    title = "success and mean return on held-out tasks, by round"
    table = Table(title=title, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.title_justify = "left"
    table.add_column("round", no_wrap=True)
    table.add_column("environment", no_wrap=True)
    for heading in ("tasks", "played", RATES, "gain on round 0 [95 %]", "turns"):
        table.add_column(styled(heading), justify="right", no_wrap=True)
    for one in sorted(validated, key=lambda one: (one.env, one.round)):
        result = one.result
        turns = "-" if result.turns_mean is None else f"{result.turns_mean:.1f}"
        cells = (str(result.tasks), str(result.episodes), styled(rates_cell(result)))
        gain = styled(f"{one.gain.difference}\n{one.gain.return_difference}") if one.gain else ""
        table.add_row(str(one.round), styled(one.env), *cells, gain, turns)
    return table
