"""Run of an evaluation: play the pending episodes, show the progress, then show and write the results."""

import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Self

from rich.console import Console
from rich.markup import escape

from verl_agent.agents.registry import OPTION as TURNS_LEFT
from verl_agent.errors import counted
from verl_agent.evaluation.api.reply_log import FILE, totals
from verl_agent.evaluation.job import Evaluation
from verl_agent.evaluation.loop import EvaluationSetup, play_all
from verl_agent.evaluation.policies import start_policies, start_sessions
from verl_agent.evaluation.report import comparison_table, describe_totals, results_table
from verl_agent.evaluation.training_differences import differences_table
from verl_agent.platform.worker_environment import worker_environment
from verl_agent.results.folder import RECORDS, REPORT, model_name
from verl_agent.results.results import (
    CountedEpisode,
    category_results,
    compare_counted,
    counted_episodes,
    solved_by_task,
)
from verl_agent.results.scaling import success_within_turns
from verl_agent.results.significance import paired_ratio
from verl_agent.results.statistics import Estimate
from verl_agent.rollout.approval import Approval, asks_person
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.runs.console import progress_bar
from verl_agent.runs.control.service import controlled
from verl_agent.runs.control.state import RunControl
from verl_agent.runs.processes import run_ending_all_children
from verl_agent.runs.terminal_person import TerminalPerson
from verl_agent.trace.provenance import write_result
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.types import Episode, StopReason


def run_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Play the pending episodes and end all child processes; warn first about a doubtful comparison.

    It is one with an unfinished evaluation, or of a model that was trained differently.
    """
    if evaluation.baseline_unplayed:
        folder = escape(str(evaluation.config.evaluation.compare_with))
        console.print(
            f"[yellow]evaluation.compare_with={folder} is not finished: it has "
            f"{evaluation.baseline_unplayed}.[/] Only the tasks that it has played are compared.",
            highlight=False,
            soft_wrap=True,
        )
    if evaluation.training_run is not None and evaluation.training_differences:
        console.print(differences_table(evaluation.training_differences, evaluation.training_run))
    if evaluation.pending:
        os.environ |= worker_environment(evaluation.folder)
        run_ending_all_children(play_pending(evaluation, console))


async def play_pending(evaluation: Evaluation, console: Console) -> None:
    """Start policies and session hosts, and play the pending episodes."""
    config, pending, run = evaluation.config, evaluation.pending, evaluation.config.run
    console.print(
        f"starting {evaluation.model}; {counted(len(pending), 'episode')} to play", markup=False, soft_wrap=True
    )
    console.print(f"folder: {evaluation.folder}", markup=False, highlight=False, soft_wrap=True)
    control = new_control(evaluation, console)
    policies = start_policies(evaluation.model, config, evaluation.items, evaluation.folder)
    with EpisodeWriter(evaluation.folder / RECORDS) as writer, _token_writer(evaluation) as tokens:
        async with start_sessions(evaluation.model, config) as new_session, policies as new_policy:
            setup = EvaluationSetup(
                new_env=new_session,
                new_agent=run.new_agent,
                new_policy=new_policy,
                limits=EpisodeLimits(
                    run.horizon.turns_for_evaluation(), None, run.env.retries, run.env.on_action_error
                ),
                tasks=config.evaluation.tasks,
                model=evaluation.model,
                seed=config.evaluation.seed,
                concurrency=config.evaluation.concurrency,
                max_env_error_rate=run.env.max_env_error_rate,
                purpose=config.evaluation.purpose,
                oracle_turns=run.live.oracle_turns,
                on_valid=None if tokens is None else tokens.add,
                overseer=control,
            )
            progress = EvaluationProgress(
                console, evaluation.planned, evaluation.planned - len(pending), bar=not asks_person(evaluation.rules)
            )
            with progress, controlled(evaluation.folder, control):
                await play_all(pending, setup, writer, progress.add)


def new_control(evaluation: Evaluation, console: Console) -> RunControl:
    """Return the overseer of the episodes: a person's control, with the rules of `evaluation.approve` behind it."""
    if not evaluation.rules:
        return RunControl(planned=evaluation.planned)
    person = TerminalPerson(console) if asks_person(evaluation.rules) else None
    approval = Approval(evaluation.rules, evaluation.config.run.live.describe_action, person)
    return RunControl(approval, planned=evaluation.planned)


def _token_writer(evaluation: Evaluation) -> AbstractContextManager[Any]:
    """Return the writer of tokens, or a context of None if none are recorded."""
    if evaluation.config.evaluation.logprobs is None:
        return nullcontext()
    from verl_agent.evaluation.token_writer import TokenWriter

    return TokenWriter(evaluation.folder)


def report_results(evaluation: Evaluation, console: Console) -> None:
    """Show and write the results of the recorded episodes, if there are any, and what the replies of an API cost."""
    records, config = evaluation.records(), evaluation.config
    spent = None if config.api is None else totals(evaluation.folder / FILE)
    if spent is not None and (spent.replies or spent.lost):
        console.print(describe_totals(spent), markup=False, highlight=False, soft_wrap=True)
    episodes = counted_episodes(records, config.evaluation.count_operated)
    results = category_results(episodes)
    if not results:
        return
    overall = results[-1]
    played = overall.played
    title = f"{config.run.env.name}, {config.evaluation.tasks}: {model_name(evaluation.model)}"
    partial_title = f"{title} ({played} of {evaluation.planned} episodes)"
    shown_title = title if played == evaluation.planned else partial_title
    console.print(results_table(results, shown_title, config.evaluation.approve))
    unplanned = evaluation.unplanned()
    if unplanned:
        console.print(
            f"[yellow]left out:[/] {counted(unplanned, 'recorded episode')} of an earlier start with other tasks or "
            "more samples. The results cover them again with the earlier evaluation.tasks, max_tasks, "
            "max_tasks_per_category and samples.",
            highlight=False,
            soft_wrap=True,
        )
    shared = {record["task"] for record in evaluation.baseline} & {record["task"] for record in records}
    before = counted_episodes(evaluation.baseline) if shared else []
    after = counted_episodes(records) if shared and config.evaluation.count_operated else episodes
    comparisons = compare_counted(before, after) if shared else []
    ratio = _success_ratio(before, after) if comparisons else None
    if ratio is not None and config.evaluation.perturb.active:
        console.print(f"ratio of success to {config.evaluation.compare_with}: {ratio}", markup=False, highlight=False)
    if comparisons:
        gap = f" (not finished: {evaluation.baseline_unplayed})" if evaluation.baseline_unplayed else ""
        console.print(comparison_table(comparisons, f"{config.evaluation.compare_with}{gap}"))
    curve = None
    if not config.run.agent.options.get(TURNS_LEFT):  # else its replies depend on the limit
        curve = {turns: asdict(success) for turns, success in success_within_turns(records).items()}
    facts = {
        "model": evaluation.model,
        "seed": config.evaluation.seed,
        "planned": evaluation.planned,
        "planned_tasks": [item.id for item in evaluation.items],
        "unplanned": unplanned,
        "approval": [asdict(rule) for rule in evaluation.rules],
        "played": played,
        "training_run": str(evaluation.training_run) if evaluation.training_run else None,
        "training_differences": [asdict(one) for one in evaluation.training_differences],
        "success_within_turns": curve,
        "success_ratio": asdict(ratio) if ratio else None,
        "config": config.plain,
        "api": None if spent is None else asdict(spent),
    }
    facts |= {"results": list(map(asdict, results)), "comparison": list(map(asdict, comparisons))}
    path = write_result(evaluation.folder / REPORT, REPORT_VERSION, facts)
    console.print(f"results: {path}\nepisodes: {evaluation.folder / RECORDS}", markup=False, soft_wrap=True)


def _success_ratio(baseline: Sequence[CountedEpisode], episodes: Sequence[CountedEpisode]) -> Estimate | None:
    """Return the success rate divided by that of the baseline, over the tasks with a valid episode of both."""
    before, after = solved_by_task(baseline), solved_by_task(episodes)
    return paired_ratio({task: after[task] for task in sorted(after) if task in before}, before)


REPORT_VERSION = 2
"""Version of the JSON. It increases when a field changes its meaning or disappears."""
LINES = 20
"""Approximate number of plain lines."""


class EvaluationProgress:
    """Counter of ended episodes that shows itself. Use it as a context manager.

    Args:
        done: number of episodes played by earlier starts.
        bar: show a bar in a terminal; False leaves the terminal to questions.
    """

    def __init__(self, console: Console, total: int, done: int = 0, bar: bool = True) -> None:
        self.console, self.total = console, total
        self._shows_bar = console.is_terminal and bar
        self.played = self.solved = self.errors = self.overlong = self.operated = self.action_errors = 0
        self._done_before, self._started = done, time.monotonic()
        self._bar = progress_bar(console, "episodes")
        self._task = self._bar.add_task("playing", total=total, completed=done)

    def __enter__(self) -> Self:
        if self._shows_bar:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._shows_bar:
            self._bar.stop()

    def add(self, episode: Episode) -> None:
        """Count the last attempt of one episode."""
        self.played += 1
        self.operated += episode.operated
        self.solved += episode.success and not episode.operated
        self.overlong += episode.stop is StopReason.OVERLONG_PROMPT
        self.errors += episode.stop is StopReason.ENV_ERROR
        self.action_errors += episode.stop is StopReason.ACTION_ERROR
        self._bar.update(self._task, advance=1, description=self.state)
        if not self._shows_bar and (self.played % max(1, self.total // LINES) == 0 or not self._left):
            left = timedelta(seconds=round(self._left * (time.monotonic() - self._started) / self.played))
            done = self._done_before + self.played
            self.console.print(f"{done}/{self.total} episodes, {self.state}, {left} left", highlight=False)

    @property
    def state(self) -> str:
        """Text with the success rate of the valid episodes since this start, and the numbers of special ones."""
        valid = self.played - self.errors - self.overlong - self.operated
        rate = f"success {self.solved / valid:.1%}" if valid else "success -"
        others = {
            "environment errors": self.errors,
            "action errors": self.action_errors,
            "overlong prompts": self.overlong,
            "with a person's decisions": self.operated,
        }
        return ", ".join([rate, *(f"{count} {name}" for name, count in others.items() if count)])

    @property
    def _left(self) -> int:
        return self.total - self._done_before - self.played
