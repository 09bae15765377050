"""Files of an error analysis: JSON and Markdown, in the folder of the evaluation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from verl_agent.envs.registry import make_env
from verl_agent.errors import ConfigError, counted
from verl_agent.results.failures import CategoryFailures, FailedEpisode, find_failures, summarize_failures
from verl_agent.results.folder import RECORDS, REPORT, planned_records, read_report
from verl_agent.results.leaderboard_report import to_cell
from verl_agent.results.report_files import escaped, markdown_table, write_report
from verl_agent.trace.provenance import read_json
from verl_agent.trace.record_files import read_records

FAILURES_VERSION = 2
"""Version of the JSON. It increases when a field changes its meaning or disappears."""
JSON = "failures.json"
_CATEGORIES, _EPISODES = TypeAdapter(list[CategoryFailures]), TypeAdapter(list[FailedEpisode])
EPISODE_COLUMNS = ("task", "sample", "stop", "return", "turns", "first divergence", "sub-goals", "missed")


def analyze_failures(folder: Path, category: str | None = None) -> tuple[list[CategoryFailures], list[FailedEpisode]]:
    """Analyze the failed episodes of an evaluation, or of records that were imported.

    Args:
        category: only this category; None for all.

    Raises:
        ConfigError: the folder holds no evaluation, or the category has no episode.
    """
    recorded = (folder / RECORDS).is_file() and not (folder / REPORT).is_file()
    imported = recorded and any("unknown" in record for record in read_records(folder / RECORDS))
    config: dict[str, Any] = {"evaluation": {}} if imported else read_report(folder)["config"]
    if (config["evaluation"].get("perturb") or {}).get("rename"):
        raise ConfigError(
            f"{folder} was played with evaluation.perturb.rename=true, so its actions have other words than the "
            "oracle's. Analyze an evaluation without it."
        )
    records = planned_records(folder)
    categories = sorted({record["category"] for record in records})
    if category is not None:
        if category not in categories:
            raise ConfigError(f"--category {category!r} has no episode. Categories: {', '.join(categories)}.")
        records = [record for record in records if record["category"] == category]
    env = None if imported else make_env(config["env"]["name"], config["env"].get("options"))
    operated = bool(config["evaluation"].get("count_operated"))
    failures = find_failures(records, env, operated)
    return summarize_failures(records, failures, operated), failures


def write_failures(
    summaries: Sequence[CategoryFailures], failures: Sequence[FailedEpisode], folder: Path
) -> list[Path]:
    """Write both files and return their paths."""
    facts = {"categories": _CATEGORIES.dump_python(list(summaries)), "episodes": _EPISODES.dump_python(list(failures))}
    return write_report(folder, "failures", FAILURES_VERSION, facts, failures_markdown(summaries, failures))


def failures_markdown(summaries: Sequence[CategoryFailures], failures: Sequence[FailedEpisode]) -> str:
    """Return a section for each category: its summary, its behaviors and its failed episodes."""
    lines = ["# Failed episodes\n"]
    for summary in summaries:
        of_category = [failure for failure in failures if failure.category == summary.category]
        lines += [
            f"## {escaped(summary.category or 'no category')}\n",
            *(f"{escaped(text)}\n" for text in summary_lines(summary)),
            "",
        ]
        if summary.behaviors:
            rows = [[name, *map(_percent, shares)] for name, shares in summary.behaviors.items()]
            lines += markdown_table(["behavior", "failed episodes", "solved episodes"], rows)
        lines += markdown_table(EPISODE_COLUMNS, map(episode_cells, of_category))
    return "\n".join(lines)


def summary_lines(summary: CategoryFailures) -> list[str]:
    """Return sentences on the endings, divergences and sub-goals of the failed episodes of a category."""
    lines = [f"{summary.failed} of {counted(summary.episodes, 'episode')} failed. Ended by: {_counts(summary.stops)}."]
    if summary.error_actions:
        lines.append(f"Actions that make the environment fail each time: {_counts(summary.error_actions)}.")
    if summary.finishes:
        lines.append(f"Replies that the API ended: {_counts(summary.finishes)}.")
    if summary.call_errors:
        lines.append(f"Faulty function calls: {_counts(summary.call_errors)}.")
    if summary.divergence_turn is not None:
        lines.append(
            f"Half of those that leave the oracle's plan have left it by turn {summary.divergence_turn:g}. "
            f"Due were: {_counts(summary.left_for)}. Taken were: {_counts(summary.taken)}."
        )
    if summary.beyond_limit is not None:
        beyond = " An agent that follows these plans does not finish." if summary.beyond_limit else ""
        lines.append(
            f"The oracle's plan has more actions than the turn limit in {summary.beyond_limit} of "
            f"{counted(summary.tasks, 'task')} with a failed episode.{beyond}"
        )
    if summary.sub_goals is not None:
        lines.append(
            f"Share of the environment's sub-goals that a failed episode reaches: {to_cell(summary.sub_goals)}. First "
            f"missed: {_counts(summary.missed)}."
        )
    return lines


def short_summary(summary: CategoryFailures) -> str:
    """Return one line: failed episodes, how they ended, and the behavior that most of them show."""
    parts = [f"{summary.failed} of {counted(summary.episodes, 'episode')} failed", f"ended by {_counts(summary.stops)}"]
    shares = {name: failed for name, (failed, _) in summary.behaviors.items() if failed}
    if shares:
        most = max(shares, key=lambda name: shares[name])
        parts.append(f"most frequent behavior: {most} ({shares[most]:.0%})")
    return f"{summary.category or 'no category'}: {'; '.join(parts)}"


def episode_cells(failure: FailedEpisode) -> list[str]:
    """Return a failed episode as text, in the order of `EPISODE_COLUMNS`."""
    left = failure.divergence
    missed = [goal.text for goal in failure.sub_goals if not goal.reached]
    shown = f"turn {left.turn}: {left.action}, due was {left.planned}" if left else ""
    stop = f"{failure.stop} ({_counts(failure.finishes)})" if failure.finishes else failure.stop
    cells = [failure.task, str(failure.sample), stop, f"{failure.reward:g}", str(failure.turns), shown]
    reached = f"{len(failure.sub_goals) - len(missed)} of {len(failure.sub_goals)}" if failure.sub_goals else ""
    return [*cells, reached, "; ".join(missed)]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count}×)" for name, count in counts.items()) or "none"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def read_failures(folder: Path) -> tuple[list[CategoryFailures], list[FailedEpisode]] | None:
    """Return what `write_failures` wrote into a folder; None if it has not.

    Raises:
        ConfigError: the file is of another version.
    """
    path = folder / JSON
    if not path.is_file():
        return None
    value = read_json(path, f"Write it again: verl-agent failures {folder}")
    if value.get("version") != FAILURES_VERSION:
        raise ConfigError(f"{path} is of another version. Write it again: verl-agent failures {folder}")
    return (
        _CATEGORIES.validate_python(value["categories"]),
        _EPISODES.validate_python(value["episodes"]),
    )
