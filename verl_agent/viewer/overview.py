"""Overview of a run or an evaluation: what was played, whether it is running, and the success that it reached."""

import logging
import math
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from verl_agent.config.keys import reference, value_at
from verl_agent.errors import ConfigError, counted, describe_exception
from verl_agent.results.findings_steps import StepSummary
from verl_agent.results.folder import REPORT, SETTINGS, model_name, read_report
from verl_agent.runs.heartbeat import is_beating
from verl_agent.runs.identity import LOCK_FILE, SETTINGS_FILE, differences, read_plan, read_settings
from verl_agent.viewer.run_data import RunData, cached_run
from verl_agent.viewer.state import OpenedSource

logger = logging.getLogger(__name__)
T = TypeVar("T")
_composing = threading.Lock()
"""Held while a recipe is composed: Hydra has one state for all threads."""


@dataclass(frozen=True, slots=True)
class Overview:
    """Content of a card of the first page.

    Attributes:
        facts: values by name, such as model, environment, algorithm and date.
        result: sentence on success and return, with their intervals.
        success: success by step, for a small curve: of the validation where there is one.
        problem: message of what could not be read; empty if all could.
    """

    facts: Mapping[str, str]
    result: str
    success: list[float]
    problem: str = ""


def read_overview(opened: OpenedSource) -> Overview:
    """Return the overview of a source; what it has not recorded, and what cannot be read, is left out."""
    problem = ""

    def part(read: Callable[[], T], otherwise: T) -> T:
        nonlocal problem
        try:
            return read()
        except Exception as error:  # boundary of a card: files of others may hold anything, and other cards are shown
            logger.info("a part of the overview of %s is left out", opened.source.path, exc_info=True)
            message = str(error) if isinstance(error, ConfigError) else describe_exception(error)
            problem = f"Not all of this run can be shown: {message}"
            return otherwise

    no_span: list[tuple[float, float]] = []
    run = part(partial(cached_run, opened), RunData(opened.key, (), {}))
    steps = [at for at in run.steps if at.episodes]
    validated = [at for at in steps if at.purpose in ("validation", "evaluation")]
    shown = validated if len(validated) > 1 or not steps else [at for at in steps if at.purpose == "train"] or steps
    facts = {"kind": opened.source.kind, **_settings(opened)}
    if spans := part(lambda: _spans(opened), no_span) if steps else no_span:
        facts["started"] = f"{datetime.fromtimestamp(spans[0][0]):%Y-%m-%d %H:%M}"
        facts["took"] = str(timedelta(seconds=round(sum(end - begin for begin, end in spans))))
    if steps:
        last = max(at.step for at in steps)
        facts |= {"step": str(last)} if last else {}
        facts["episodes"] = f"{sum(at.episodes + at.env_errors for at in steps):,}"
    result = part(lambda: _result(opened, run, validated), "")
    return Overview(facts, result, [at.success for at in shown], problem)


def _spans(opened: OpenedSource) -> list[tuple[float, float]]:
    """Return the times of each start of a run and of the end of its last episode; of other sources, one span.

    All episodes count, also those that failed or were played again: the run has spent time on them.

    Returns:
        Pairs of seconds since 1970.
    """
    starts = [datetime.fromisoformat(start).replace(tzinfo=UTC).timestamp() for start in opened.source.starts()]
    span = """SELECT min(begin), max(begin + seconds) FROM
        (SELECT strftime('%s', started_at) * 1.0 AS begin, seconds FROM episodes) WHERE begin >= ? AND begin < ?"""
    first = opened.index.db.execute(span, (-math.inf, math.inf)).fetchone()[0]
    if first is None:  # no time of the records is one
        return []
    starts = sorted({first, *starts}) if first < min(starts, default=math.inf) else starts
    parts = list(pairwise([*starts, math.inf]))
    found = [(part[0], opened.index.db.execute(span, part).fetchone()[1]) for part in parts]
    return [(start, end) for start, end in found if end is not None]


def _settings(opened: OpenedSource) -> dict[str, str]:
    """Return model, environment and algorithm as they were recorded."""
    folder = opened.source.folder
    try:
        if opened.source.kind == "training":
            read = read_settings(folder, SETTINGS_FILE)
            model, algorithm = value_at(read, "actor_rollout_ref.model.path"), value_at(read, "algorithm.adv_estimator")
            found: dict[str, Any] = {"model": model, "environment": value_at(read, "env.name"), "algorithm": algorithm}
        elif (folder / REPORT).is_file():
            report = read_report(folder)
            found = {"model": report["model"], "environment": report["config"]["env"]["name"]}
        else:
            read = read_settings(folder, SETTINGS)
            found = {"model": read.get("model"), "environment": value_at(read, "env.name")}
    except (ConfigError, OSError, ValueError, KeyError, TypeError):  # of another version, or half written
        return {}
    found["model"] = model_name(str(found["model"] or ""))
    return {name: str(value) for name, value in found.items() if value}


def is_running(folder: Path) -> bool:
    """Return True if a process runs in a folder, in this container or in another one."""
    lock = folder / LOCK_FILE
    if not lock.is_file():
        return False
    # not by locking: a viewer in the process of the run would release the run's own lock
    locks = Path("/proc/locks").read_text() if Path("/proc/locks").exists() else ""
    return bool(re.search(rf":{lock.stat().st_ino} ", locks)) or is_beating(folder)


def status_of(opened: OpenedSource) -> str:
    """Return `reading` until the records are read once, then `running`, `ended`, `stopped`, or "" if it is unknown."""
    folder = opened.source.folder
    if opened.reading:
        return "reading"
    if not (folder / LOCK_FILE).is_file():
        return ""
    if is_running(folder):
        return "running"
    if opened.source.kind == "training":
        reached = max((at.step for at in cached_run(opened).steps if at.episodes), default=0)
        return "ended" if 0 < read_plan(folder) <= reached else f"stopped at step {reached}"
    return "ended" if (folder / REPORT).is_file() else "stopped"


def _result(opened: OpenedSource, run: RunData, validated: list[StepSummary]) -> str:
    """Return the success as the report of an evaluation has it, or that of the first and the last validation."""
    if (opened.source.folder / REPORT).is_file():
        overall = read_report(opened.source.folder)["results"][-1]
        shown = [(name, overall.get(key)) for name, key in (("success", "success"), ("mean return", "mean_return"))]
        texts = [f"{name} {{mean:.3f}} [{{low:.3f}}, {{high:.3f}}]".format(**value) for name, value in shown if value]
        return ", ".join(texts) or "no valid episode"
    if not validated:
        return ""
    ends = [(at.purpose, at.step) for at in (validated[0], validated[-1])]
    (first, last), (before, after) = ([of[end] for end in ends] for of in (run.rates, run.returns))
    episodes = counted(validated[-1].episodes, "episode")
    if ends[0][1] == ends[1][1]:
        return f"success {last}, mean return {after} in {episodes}"
    steps = f"validation, step {ends[0][1]} → {ends[1][1]}"
    return f"success {first} → {last}, mean return {before} → {after} ({steps}; {episodes})"


def changed_settings(opened: OpenedSource) -> list[tuple[str, str, str]]:
    """Return key, base value and value of each setting of a training run that differs from the base recipe.

    Only settings that the run recorded are compared; base values that refer to other settings are left out.
    """
    folder = opened.source.folder
    try:
        recorded = read_settings(folder, SETTINGS_FILE)
        if opened.source.kind != "training" or not recorded:
            return []
        with _composing:
            base = reference("agent_grpo")
        found = differences(base, recorded)
        return [(key, str(was), str(now)) for key, was, now in found if "${" not in str(was)]
    except Exception as error:  # boundary: the base recipe composes with verl's YAML, which may not be installed
        logger.info("the settings of %s are not compared with the base recipe: %s", folder, error)
        return []
