"""Tables of the results of an evaluation."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from verl_agent.errors import counted
from verl_agent.evaluation.api.reply_log import Totals
from verl_agent.results.results import ALL, CategoryResult, SuccessComparison
from verl_agent.results.statistics import MIN_TASKS
from verl_agent.types import StopReason


def results_table(results: Sequence[CategoryResult], title: str, policy: str | None = None) -> Table:
    """Return a table with one row per category; success rates have their 95 % intervals.

    Args:
        policy: file of the approval policy whose rules decided on actions, for the caption; None without one.
    """
    most = max((k for result in results for k in result.pass_at), default=1)
    columns: dict[str, Callable[[CategoryResult], str]] = {
        "tasks": lambda result: _tasks(result.tasks),
        "episodes": lambda result: str(result.episodes),
        "success [95 %]": lambda result: str(result.success or "-"),
        f"pass@{most}": lambda result: _number(result.pass_at.get(most), "{:.3f}"),
        "turns": lambda result: _number(result.turns_mean, "{:.1f}"),
        "invalid": lambda result: _number(result.invalid_rate, "{:.1%}"),
        "errors": lambda result: str(result.env_errors),
        "action errors": lambda result: str(_action_errors(result)),
        "overlong": lambda result: str(result.overlong_prompts),
    }
    columns.pop("pass@1", None)
    if not any(result.env_errors for result in results):
        del columns["errors"]
    if not any(_action_errors(result) for result in results):
        del columns["action errors"]
    if not any(result.overlong_prompts for result in results):
        del columns["overlong"]
    table = _table(title, *columns)
    captions = [line for one in results if one.category == ALL for line in _captions(one, policy)]
    table.caption = "\n".join([*captions, *_too_few(result.tasks for result in results)])
    for number, result in enumerate(results, start=1):
        cells = (escape(read(result)) for read in columns.values())
        table.add_row(escape(result.category), *cells, end_section=number == len(results) - 1)
    return table


def comparison_table(comparisons: Sequence[SuccessComparison], before: str) -> Table:
    """Return a table with one row per category that compares success with that of the evaluation `before`."""
    table = _table(f"compared with {before}, by task", "tasks", "before", "after", "difference [95 %]")
    unpaired = comparisons[-1].unpaired
    notes = [f"{unpaired} tasks played in only one of the two are left out"] if unpaired else []
    table.caption = "\n".join([*notes, *_too_few(one.difference.tasks for one in comparisons)])
    for one in comparisons:
        cells = (_tasks(one.difference.tasks), f"{one.before:.3f}", f"{one.after:.3f}", str(one.difference))
        table.add_row(escape(one.category), *map(escape, cells))
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
        lines.append(f"the model refuses these settings, which were left out: {', '.join(totals.dropped)}")
    return "\n".join(lines)


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
    if overall.operated:
        yield (
            f"operated: {overall.operated} of {overall.played} episodes are in no rate, since a person decided in "
            "them. evaluation.count_operated=true counts those that the person did not end"
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
            f"rules{f' of {escape(policy)}' if policy else ''}: {counted(overall.rule_rejected, 'action')} rejected in "
            f"{overall.rule_rejected_episodes} of {episodes}, {overall.rule_approved} approved"
        )


def plain_table(title: str | None = None) -> Table:
    """Return a table without columns and edges; its title has rich's markup."""
    table = Table(title=title, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.title_justify = table.caption_justify = "left"
    return table


def _table(title: str, *headings: str) -> Table:
    """Return an empty table that fits 80 columns; its first column is the category."""
    table = plain_table(escape(title))
    table.add_column("category", no_wrap=True)
    for heading in headings:
        table.add_column(escape(heading), justify="right", no_wrap=True)
    return table


def _number(value: float | None, template: str) -> str:
    return "-" if value is None else template.format(value)
