"""Tables of the results of an evaluation."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from verl_agent.envs.model_api.reply_log import Totals
from verl_agent.errors import counted
from verl_agent.results.comparison import Comparison
from verl_agent.results.results import ALL, CategoryResult
from verl_agent.results.statistics import MIN_TASKS
from verl_agent.terminal import styled
from verl_agent.types import StopReason

RARE = ("errors", "action errors", "overlong", "refused")
"""Columns that a table of zeros leaves out."""


def results_table(results: Sequence[CategoryResult], title: str, policy: str | None = None) -> Table:
    """Return a table with one row per category: success, below it the mean return, each with its 95 % interval.

    Args:
        policy: file of the approval policy whose rules decided on actions, for the caption; None without one.
    """
    measured = [set(result.pass_at) for result in results if result.pass_at]
    shared = set.intersection(*measured) - {1} if measured else set()
    most = max(shared or set().union(*measured[-1:]), default=1)  # else of the last row, of all
    columns: dict[str, Callable[[CategoryResult], str]] = {
        "tasks": lambda result: _tasks(result.tasks),
        "episodes": lambda result: str(result.episodes),
        RATES: rates_cell,
        f"pass@{most}": lambda result: _number(result.pass_at.get(most), "{:.3f}"),
        "turns": lambda result: _number(result.turns_mean, "{:.1f}"),
        "invalid": lambda result: _number(result.invalid_rate, "{:.1%}"),
        "errors": lambda result: str(result.env_errors),
        "action errors": lambda result: str(_action_errors(result)),
        "overlong": lambda result: str(result.overlong_prompts),
        "refused": lambda result: str(sum(result.refused.values())),
    }
    cells = {name: list(map(read, results)) for name, read in columns.items()}
    cells = {
        name: shown for name, shown in cells.items() if name != "pass@1" and (name not in RARE or {*shown} != {"0"})
    }
    table = plain_table(title, "category", values=[*cells])
    captions = [line for one in results if one.category == ALL for line in _captions(one, policy)]
    table.caption = styled(("\n".join([*captions, *_too_few(result.tasks for result in results)]), "table.caption"))
    for number, (result, *row) in enumerate(zip(results, *cells.values(), strict=True), start=1):
        table.add_row(styled(result.category), *map(styled, row), end_section=number == len(results) - 1)
    return table


def comparison_table(comparisons: Sequence[Comparison], before: str) -> Table:
    """Return a table that compares success and return of each category with those of the evaluation `before`."""
    values = ("measure", "tasks", "before", "after", "difference [95 %]")
    table = plain_table(f"compared with {before}, by task", "category", values=values)
    unpaired = comparisons[-1].unpaired
    notes = [f"{unpaired} tasks played in only one of the two are left out"] if unpaired else []
    table.caption = styled(
        ("\n".join([*notes, *_too_few(one.difference.tasks for one in comparisons)]), "table.caption")
    )
    for comparison in comparisons:
        for name, measure, before_after, difference in (
            (comparison.category, "success", (comparison.before, comparison.after), comparison.difference),
            ("", "return", (comparison.return_before, comparison.return_after), comparison.return_difference),
        ):
            cells = (measure, _tasks(difference.tasks), *map("{:.3f}".format, before_after), str(difference))
            table.add_row(styled(name), *map(styled, cells))
    return table


def describe_totals(totals: Totals) -> str:
    """Return the lines about model, tokens, cost and refused settings of a model behind an API."""
    cost = "unknown cost" if totals.cost_usd is None else f"{totals.cost_usd:.4f} USD"
    models = f" of {', '.join(filter(None, totals.models))}" if any(totals.models) else ""
    read, written = (
        "an unknown number of" if count is None else f"{count:,}"
        for count in (totals.input_tokens, totals.output_tokens)
    )
    tokens = f"{read} tokens read, {written} written"
    lines = [f"{totals.replies} replies{models}: {tokens}, {cost}"]
    if totals.cost_usd is not None and totals.unknown_costs:
        lines.append(f"not in this cost: {totals.unknown_costs} requests whose tokens or price are unknown")
    if totals.dropped:
        lines.append(f"the model refuses these settings and fields, which were left out: {', '.join(totals.dropped)}")
    return "\n".join(lines)


RATES = "success [95 %]\nreturn [95 %]"
"""Heading of the cells of `rates_cell`."""


def rates_cell(result: CategoryResult) -> str:
    """Return the success rate and, on a second line, the mean return of a category, with their intervals."""
    return "-" if result.success is None else f"{result.success}\n{result.mean_return}"


def _tasks(count: int) -> str:
    """Return a number of tasks, marked if it is too small for a reliable interval."""
    return f"{count}*" if count < MIN_TASKS else str(count)


def _too_few(counts: Iterable[int]) -> list[str]:
    """Return the caption that explains the mark of `_tasks`, if a count has it."""
    return [f"* too few tasks for a reliable interval (below {MIN_TASKS})"] if min(counts) < MIN_TASKS else []


def _action_errors(result: CategoryResult) -> int:
    return result.stops.get(StopReason.ACTION_ERROR, 0)


def _captions(overall: CategoryResult, policy: str | None) -> Iterator[str]:
    """Yield the captions on the result of all tasks: endings, and what changes the rates or is in none."""
    episodes = counted(overall.episodes, "counted episode")
    yield "ended by: " + ", ".join(f"{reason} {count}" for reason, count in overall.stops.items())
    if errors := _action_errors(overall):
        yield (
            f"action errors: {errors} of {episodes} failed at an action that raises the same error in every fresh "
            "session"
        )
    if overall.begun_anew:
        yield (
            f"begun anew: {overall.begun_anew} of {episodes} after an error of their environment that no replay could "
            "repair. Long episodes meet more errors, so they are under-represented"
        )
    if overall.overlong_prompts:
        yield (
            f"overlong: {overall.overlong_prompts} of {overall.played} episodes are in no rate, since their prompt "
            "exceeds data.max_prompt_length. Raise it, or set data.overlong_prompt=truncate_observation"
        )
    if overall.refused:
        kinds = ", ".join(f"{kind} {count}" for kind, count in overall.refused.items())
        yield (
            f"refused: {sum(overall.refused.values())} of {overall.played} episodes are in no rate, since the server "
            f"refused a request twice ({kinds}). The records have its message"
        )
    if overall.operated:
        yield (
            f"operated: {overall.operated} of {overall.played} episodes are in no rate, since a person decided in "
            "them, or an overseer edited or ended them. evaluation.count_operated=true counts those that were not ended"
        )
    if overall.approved or overall.rejected:
        rejected = ""
        if overall.rejected:
            bias = "If these are not counted, the rates are too high: a person rejects what goes wrong"
            rejected = f"; in {counted(overall.rejected, 'episode')} a person rejected some. {bias}"
        approved = counted(overall.approved, "counted episode")
        yield f"approved: in {approved} a person approved actions{rejected}"
    if policy or overall.rule_approved or overall.rule_rejected:
        yield (
            f"rules{f' of {policy}' if policy else ''}: {counted(overall.rule_rejected, 'action')} rejected in "
            f"{overall.rule_rejected_episodes} of {episodes}, {overall.rule_approved} approved"
        )


def plain_table(title: Text | str = "", *names: str, values: Sequence[str] = ()) -> Table:
    """Return a table without edges and rows.

    Args:
        names: headings of columns that name the rows, which are folded in a narrow terminal.
        values: headings of columns of numbers, which are whole at any width (`show_table`).
    """
    shown = styled((title, "table.title")) if isinstance(title, str) else title
    table = Table(
        title=shown if title else None, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
    )
    table.title_justify = table.caption_justify = "left"
    for name in names:
        table.add_column(name, overflow="fold")
    for heading in values:
        table.add_column(styled(heading), justify="right", no_wrap=True)
    return table


def _number(value: float | None, template: str) -> str:
    return "-" if value is None else template.format(value)
