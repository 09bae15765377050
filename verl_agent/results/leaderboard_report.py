"""Files of a leaderboard: JSON, Markdown, and a plot of cost against success."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verl_agent.errors import counted
from verl_agent.results.leaderboard import SOURCE, TASKS, Board, BoardRow
from verl_agent.results.report_files import escaped, markdown_table, write_report
from verl_agent.results.results import ALL
from verl_agent.results.statistics import MIN_TASKS, Estimate

LEADERBOARD_VERSION = 1
"""Version of the JSON. It increases when a field changes its meaning or disappears."""
FEW = "*"
"""Mark of an estimate from too few tasks."""
PAIR_COLUMNS = ("pair", "difference of success [95 %]", "p", "p (Holm)", "difference of return [95 %]")
PARETO = "(Pareto)"
"""Mark of a cost at which no other row is better or equally good and cheaper."""


def write_leaderboard(boards: Sequence[Board], folder: Path) -> list[Path]:
    """Write the files of a leaderboard into a folder and return them; the plot only if a cost is known."""
    facts = {"published_source": SOURCE, "boards": list(map(asdict, boards))}
    priced = any(row.priced for board in boards for row in board.rows)
    figure = _plot(boards) if priced else None
    return write_report(folder, "leaderboard", LEADERBOARD_VERSION, facts, leaderboard_markdown(boards), figure)


def leaderboard_markdown(boards: Sequence[Board]) -> str:
    """Return all boards as Markdown."""
    return "# Leaderboard\n\n" + "\n".join(_board(board) for board in boards)


def columns(board: Board) -> list[str]:
    """Return the names of the columns of a board."""
    return ["model", *board.categories, "macro mean", "all", "return", "turns", "tokens", "USD", "env errors"]


def cells(board: Board) -> list[list[str]]:
    """Return the rows of a board as text, published rates last."""
    blanks = [""] * len(board.categories)
    published = [
        [f"{model} (published)", *blanks, "", f"{rate:.3f} ({TASKS[board.env]})", *[""] * 5]
        for model, rate in board.published.items()
    ]
    return [*(_cells(board, row) for row in board.rows), *published]


def notes(board: Board) -> list[str]:
    """Return the sentences that explain the marks of a board."""
    found = []
    if board.published:
        found.append(f"Published: {SOURCE}. Its tasks, prompts and budgets may differ from those of this board.")
    if any(result.success and result.success.too_few for row in board.rows for result in row.results):
        found.append(f"{FEW} fewer than {MIN_TASKS} tasks: too few for a reliable interval.")
    if any(row.played < row.planned for row in board.rows):
        found.append("† not all planned episodes are played.")
    if any(row.unmeasured for row in board.rows):
        lacking = "; ".join(f"{row.label}: {', '.join(row.unmeasured)}" for row in board.rows if row.unmeasured)
        found.append(f"‡ over fewer categories than the other rows, since no episode of these is valid: {lacking}.")
    if any(row.pareto for row in board.rows):
        found.append(f"{PARETO}: no other row is better at a cost that is not higher.")
    if board.differences:
        found.append("Differences are paired by task. p: permutation of signs; Holm's correction is over this board.")
    return found


def difference_cells(board: Board) -> list[list[str]]:
    """Return the differences of all pairs of rows as text: pair, success, p value, corrected p value, return."""
    return [
        [
            f"{difference.first} − {difference.second}",
            str(difference.difference),
            f"{difference.p_value:.4f}",
            f"{difference.adjusted:.4f}",
            str(difference.return_difference),
        ]
        for difference in board.differences
    ]


def conditions(board: Board) -> str:
    """Return the settings that all rows of a board share, in one line."""
    return ", ".join(f"{name} {text}" for name, text in condition_texts(board).items())


def condition_texts(board: Board) -> dict[str, str]:
    """Return the settings that all rows of a board share, as text by name."""
    return {name: _plain(value) for name, value in board.conditions.items() if name != "env"}


def short_conditions(board: Board) -> str:
    """Return environment, number of tasks, agent and turn limit of a board, for the terminal."""
    tasks = counted(max(row.overall.tasks for row in board.rows), "task")
    agent = board.conditions["agent"].get("name")
    return ", ".join(
        [board.env, tasks, *([f"agent {agent}"] if agent else []), f"turns {_plain(board.conditions['turns'])}"]
    )


def _plain(value: Any, key: str = "") -> str:
    """Return a value of a config as text: `name=act context.keep=last` for a section, `none` for null and `{}`."""
    if isinstance(value, dict) and value:
        return " ".join(_plain(one, f"{key}.{name}" if key else str(name)) for name, one in value.items())
    if isinstance(value, list | tuple):
        text = " ".join(map(_plain, value))
    else:
        text = str(value).lower() if isinstance(value, bool) else "none" if value in (None, {}) else str(value)
    return f"{key}={text}" if key else text


def _board(board: Board) -> str:
    alike = "rows that were played here" if board.published else "rows"  # published ones have conditions of their own
    lines = [
        f"## {board.env}, conditions {board.key}\n",
        "Success, and the mean return over all tasks, with 95 % intervals over tasks; behind each the number of tasks. "
        f"Equal for all {alike}: `{conditions(board)}`.\n",
        *markdown_table(columns(board), cells(board)),
    ]
    if board.differences:
        lines += markdown_table(PAIR_COLUMNS, difference_cells(board))
    return "\n".join([*lines, *(f"{escaped(note)}\n" for note in notes(board))])


def _cells(board: Board, row: BoardRow) -> list[str]:
    by_category = {result.category: result for result in row.results}
    overall = by_category[ALL]
    cost = "" if row.cost_usd is None else f"{row.cost_usd:.4f}"
    lacking = " ‡" if row.unmeasured else ""
    return [
        row.label + (" †" if row.played < row.planned else ""),
        *(to_cell(by_category[name].success if name in by_category else None) for name in board.categories),
        to_cell(row.macro) + lacking,
        to_cell(overall.success) + lacking,
        to_cell(overall.mean_return) + lacking,
        "" if overall.turns_mean is None else f"{overall.turns_mean:.1f}",
        "" if overall.tokens_mean is None else f"{overall.tokens_mean:.0f}",
        f"{cost} {PARETO}" if row.pareto else cost,
        str(overall.env_errors),
    ]


def to_cell(estimate: Estimate | None) -> str:
    """Return an estimate with the number of its tasks, marked if they are too few; empty for None."""
    if estimate is None:
        return ""
    return f"{estimate} ({estimate.tasks}{FEW if estimate.too_few else ''})"


def _plot(boards: Sequence[Board]) -> Any:
    """Return a figure of the mean cost of an episode against success, one panel for each board with a known cost."""
    from matplotlib.figure import Figure

    priced = [(board, found) for board in boards if (found := [(row, *row.priced) for row in board.rows if row.priced])]
    figure = Figure(figsize=(6, 4 * len(priced)), dpi=120, layout="constrained")
    for axes, (board, rows) in zip(figure.subplots(len(priced), squeeze=False)[:, 0], priced, strict=True):
        for row, cost, success in rows:
            errors = [[success.mean - success.low], [success.high - success.mean]]
            axes.errorbar(cost, success.mean, yerr=errors, fmt="o" if row.pareto else "x", capsize=3)
            axes.annotate(row.label, (cost, success.mean), xytext=(5, 5), textcoords="offset points")
        front = sorted((cost, success.mean) for row, cost, success in rows if row.pareto)
        axes.plot(*zip(*front, strict=True), color="grey", linewidth=1, zorder=0)
        axes.set(title=board.env, xlabel="USD per episode", ylabel="success rate", ylim=(0, 1))
    return figure
