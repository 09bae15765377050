"""Run of an evaluation: play the pending episodes, show the progress, then show and write the results."""

import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Self

from verl_agent.agents.registry import OPTION as TURNS_LEFT
from verl_agent.envs.judge.judge import judging
from verl_agent.envs.model_api.reply_log import FILE, totals
from verl_agent.envs.model_api.traffic import Traffic
from verl_agent.errors import counted
from verl_agent.evaluation.job import Evaluation, check_limits
from verl_agent.evaluation.loop import EvaluationSetup, play_all
from verl_agent.evaluation.policies import role_warning, start_policies, start_sessions
from verl_agent.evaluation.report import comparison_table, describe_totals, results_table
from verl_agent.evaluation.training_differences import differences_table
from verl_agent.oversight.approval import Approval
from verl_agent.oversight.control import RunControl
from verl_agent.oversight.rules import asks_person
from verl_agent.oversight.socket import controlled
from verl_agent.oversight.terminal import TerminalPerson
from verl_agent.platform.worker_environment import worker_environment
from verl_agent.results.comparison import compare_with_baseline
from verl_agent.results.folder import RECORDS, REPORT, model_name
from verl_agent.results.results import (
    CountedEpisode,
    category_results,
    counted_episodes,
    final_records,
    solved_by_task,
)
from verl_agent.results.scaling import has_replaced_rewards, rates_within_turns
from verl_agent.results.significance import paired_ratio
from verl_agent.results.statistics import Estimate
from verl_agent.rollout.live import LiveEpisodes, Shown
from verl_agent.rollout.player import Player
from verl_agent.runs.console import progress_bar
from verl_agent.runs.processes import run_ending_all_children
from verl_agent.terminal import Console, say, show_table
from verl_agent.trace.provenance import write_result
from verl_agent.trace.record import EpisodeRecord, is_operated
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.types import Episode, StopReason


def run_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Play the pending episodes and end all child processes; warn first about a doubtful comparison.

    It is one with an unfinished evaluation, or of a model that was trained differently.

    Raises:
        EnvErrorLimitError: too many episodes failed, in this start or before.
        ConfigError: some episodes are still pending.
    """
    if evaluation.baseline_unplayed:
        unfinished = f"evaluation.compare_with={evaluation.config.evaluation.compare_with} is not finished: it has "
        warning = f"{unfinished}{evaluation.baseline_unplayed}."
        say(console, (warning, "yellow"), " Only the tasks that it has played are compared.")
    if evaluation.training_run is not None and evaluation.training_differences:
        show_table(console, differences_table(evaluation.training_differences, evaluation.training_run))
    if early_end := check_limits(evaluation.config, evaluation.model):
        say(console, early_end)
    if evaluation.pending:
        os.environ |= worker_environment(evaluation.folder)
        run_ending_all_children(play_pending(evaluation, console))
    evaluation.errors.check()
    if not evaluation.pending and evaluation.errors.failed:
        rate, failed = evaluation.config.run.env.max_env_error_rate, counted(evaluation.errors.failed, "failed episode")
        say(
            console,
            f"finished before: {failed} of {evaluation.planned} are within env.max_env_error_rate={rate:g}. A lower "
            "rate plays those again that failed outside of the policy.",
        )


async def play_pending(evaluation: Evaluation, console: Console) -> None:
    """Start policies and session hosts, and play the pending episodes."""
    config, pending, run = evaluation.config, evaluation.pending, evaluation.config.run
    say(console, f"starting {evaluation.model}; {counted(len(pending), 'episode')} to play")
    say(console, f"folder: {evaluation.folder}")
    if warning := role_warning(evaluation.model, config):
        say(console, (warning, "yellow"))
    traffic = Traffic(lambda text: say(console, (text, "yellow")))
    control = new_control(evaluation, console)
    if config.api is not None:
        control.facts = lambda: {"api": traffic.describe()}
    policies = start_policies(evaluation.model, config, evaluation.items, evaluation.folder, traffic=traffic)
    judges = judging(run.new_judge(evaluation.folder))
    facts = {"purpose": config.evaluation.purpose, "split": config.evaluation.tasks, "model": evaluation.model}
    shown = Shown(LiveEpisodes(evaluation.folder), facts, control)
    with EpisodeWriter(evaluation.folder / RECORDS) as writer, _token_writer(evaluation) as tokens:
        async with start_sessions(evaluation.model, config) as new_session, policies as new_policy, judges as judge:
            setup = EvaluationSetup(
                Player(run.new_agent, new_session, new_policy, run.limits(), shown, judge),
                tasks=config.evaluation.tasks,
                model=evaluation.model,
                seed=config.evaluation.seed,
                concurrency=config.evaluation.concurrency,
                max_env_error_rate=run.env.max_env_error_rate,
                purpose=config.evaluation.purpose,
                oracle_turns=run.live.oracle_turns,
                on_valid=None if tokens is None else tokens.add,
            )
            progress = EvaluationProgress(
                console,
                evaluation.planned,
                evaluation.planned - len(pending),
                bar=not asks_person(evaluation.rules),
                earlier=_played(evaluation),
                count_operated=config.evaluation.count_operated,
                concurrency=config.evaluation.concurrency,
            )
            with progress, controlled(evaluation.folder, control):
                await play_all(pending, setup, writer, progress.add, evaluation.errors)


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


def _played(evaluation: Evaluation) -> list[EpisodeRecord]:
    """Return the last attempts of the planned episodes that are not played again."""
    pending = {(one.item.id, one.sample) for one in evaluation.pending}
    records = final_records(evaluation.records()) if len(pending) < evaluation.planned else []
    return [record for record in records if (record["task"], record["sample"]) not in pending]


def report_results(evaluation: Evaluation, console: Console) -> None:
    """Show and write the results of the recorded episodes, if there are any, and what the replies of an API cost."""
    records, config = evaluation.records(), evaluation.config
    spent = None if config.api is None else totals(evaluation.folder / FILE)
    if spent is not None and (spent.replies or spent.lost):
        say(console, describe_totals(spent))
    episodes = counted_episodes(records, config.evaluation.count_operated)
    results = category_results(episodes)
    if not results:
        return
    overall = results[-1]
    played = overall.played
    title = f"{config.run.env.name}, {config.evaluation.tasks}: {model_name(evaluation.model)}"
    part = "" if played == evaluation.planned else f" ({played} of {evaluation.planned} episodes)"
    show_table(console, results_table(results, f"{title}{part}", config.evaluation.approve))
    unplanned = evaluation.unplanned()
    if unplanned:
        left_out = f" {counted(unplanned, 'recorded episode')} of an earlier start with other tasks or more samples."
        again = " The results cover them again with the earlier evaluation.tasks, max_tasks, max_tasks_per_category "
        say(console, ("left out:", "yellow"), f"{left_out}{again}and samples.")
    before = counted_episodes(evaluation.baseline)
    after = counted_episodes(records) if before and config.evaluation.count_operated else episodes
    comparisons, reason = compare_with_baseline(before, after)
    if reason:
        say(console, (f"not compared with {config.evaluation.compare_with}:", "yellow"), f" {reason}")
    ratio = _success_ratio(before, after) if comparisons else None
    if ratio is not None and config.evaluation.perturb.active:
        say(console, f"ratio of success to {config.evaluation.compare_with}: {ratio}")
    if comparisons:
        gap = f" (not finished: {evaluation.baseline_unplayed})" if evaluation.baseline_unplayed else ""
        show_table(console, comparison_table(comparisons, f"{config.evaluation.compare_with}{gap}"))
    curve, returns = None, None
    # With TURNS_LEFT replies depend on the limit, and a judge's rewards on the whole episode.
    if not config.run.agent.options.get(TURNS_LEFT) and not has_replaced_rewards(records):
        by_turns = rates_within_turns(records, config.evaluation.count_operated).items()
        curve = {turns: asdict(success) for turns, (success, _) in by_turns}
        returns = {turns: asdict(earned) for turns, (_, earned) in by_turns}
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
        "return_within_turns": returns,
        "success_ratio": asdict(ratio) if ratio else None,
        "config": config.plain,
        "api": None if spent is None else asdict(spent),
        **config.run.judge.identity(),
    }
    facts |= {"results": list(map(asdict, results)), "comparison": list(map(asdict, comparisons))}
    path = write_result(evaluation.folder / REPORT, REPORT_VERSION, facts)
    say(console, f"results: {path}\nepisodes: {evaluation.folder / RECORDS}")


def _success_ratio(baseline: Sequence[CountedEpisode], episodes: Sequence[CountedEpisode]) -> Estimate | None:
    """Return the success rate divided by that of the baseline, over the tasks with a valid episode of both."""
    before, after = solved_by_task(baseline), solved_by_task(episodes)
    return paired_ratio({task: after[task] for task in sorted(after) if task in before}, before)


REPORT_VERSION = 3
"""Version of the JSON. It increases when a field changes its meaning or disappears."""
LINES = 20
"""Approximate number of plain lines."""


class EvaluationProgress:
    """Counter of ended episodes that shows itself. Use it as a context manager.

    Args:
        done: number of episodes played by earlier starts.
        bar: show a bar in a terminal; False leaves the terminal to questions.
        earlier: last attempts of these episodes, which the rates include.
        count_operated: see `summarize`.
        concurrency: number of episodes played at once; before as many have ended, the time left is not known.
    """

    def __init__(
        self,
        console: Console,
        total: int,
        done: int = 0,
        bar: bool = True,
        earlier: Sequence[EpisodeRecord] = (),
        count_operated: bool = False,
        concurrency: int = 1,
    ) -> None:
        self.console, self.total, self.concurrency, self._count_operated = console, total, concurrency, count_operated
        self._shows_bar = console.is_terminal and bar
        self.played = self.solved = self.errors = self.overlong = self.operated = self.action_errors = self.refused = 0
        self._done_before, self._started = done, time.monotonic()
        for record in earlier:
            self._count(StopReason(record["stop"]), record["success"], is_operated(record))
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
        self._count(episode.stop, episode.success, episode.operated)
        self._bar.update(self._task, advance=1, description=self.state)
        if not self._shows_bar and (self.played % max(1, self.total // LINES) == 0 or not self._left):
            left = timedelta(seconds=round(self._left * (time.monotonic() - self._started) / self.played))
            known = f", {left} left" if self.played >= self.concurrency or not self._left else ""
            say(self.console, f"{self._done_before + self.played}/{self.total} episodes, {self.state}{known}")

    def _count(self, stop: StopReason, success: bool, operated: bool) -> None:
        if operated and (stop is StopReason.OPERATOR or not self._count_operated):
            self.operated += 1
            return
        self.solved += success
        self.overlong += stop is StopReason.OVERLONG_PROMPT
        self.errors += stop is StopReason.ENV_ERROR
        self.action_errors += stop is StopReason.ACTION_ERROR
        self.refused += stop is StopReason.REQUEST_REFUSED

    @property
    def state(self) -> str:
        """Text with the success rate of the valid episodes, the range of the final rate, and numbers of special ones.

        Episodes that end quickly come first, and they differ from the others: they were solved or given up early.
        """
        ended = self._done_before + self.played
        valid = ended - self.errors - self.overlong - self.refused - self.operated
        rate = f"success {self.solved / valid:.1%}" if valid else "success -"
        if valid and self._left:
            most = valid + self._left
            low, high = self.solved / most, (self.solved + self._left) / most
            rate += f" of {valid} of {self.total}, short ones first; {low:.0%} to {high:.0%} at the end"
        others = {
            "environment errors": self.errors,
            "action errors": self.action_errors,
            "overlong prompts": self.overlong,
            "refused requests": self.refused,
            "with a person's decisions": self.operated,
        }
        return ", ".join([rate, *(f"{count} {name}" for name, count in others.items() if count)])

    @property
    def _left(self) -> int:
        return self.total - self._done_before - self.played
