"""Overview of a run or an evaluation: what was played, whether it is running, and the success that it reached."""

import logging
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from verl_agent.config.keys import reference, value_at
from verl_agent.errors import ConfigError, counted
from verl_agent.results.findings import StepSummary
from verl_agent.results.folder import REPORT, SETTINGS, model_name, read_report
from verl_agent.runs.identity import LOCK_FILE, SETTINGS_FILE, differences, read_plan, read_settings
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.queries import success_rates, summarize_steps
from verl_agent.viewer.state import OpenedSource

logger = logging.getLogger(__name__)
_composing = threading.Lock()
"""Held while a recipe is composed: Hydra has one state for all threads."""


@dataclass(frozen=True, slots=True)
class Overview:
    """Content of a card of the first page.

    Attributes:
        facts: values by name, such as model, environment, algorithm and date.
        result: sentence on the success, with its interval.
        success: success by step, for a small curve: of the validation where there is one.
    """

    facts: Mapping[str, str]
    result: str
    success: list[float]


def read_overview(opened: OpenedSource) -> Overview:
    """Return the overview of a source; what it has not recorded is left out."""
    steps = [at for at in summarize_steps(opened.index, Filter()) if at.episodes]
    validated = [at for at in steps if at.purpose in ("validation", "evaluation")]
    shown = validated if len(validated) > 1 or not steps else [at for at in steps if at.purpose == "train"] or steps
    facts = {"kind": opened.source.kind, **_settings(opened)}
    if steps:
        facts["started"] = min(at.started_at for at in steps)[:16].replace("T", " ")
        began = opened.index.db.execute("SELECT min(started_at), max(started_at) FROM episodes").fetchone()
        first, latest = map(datetime.fromisoformat, began)
        facts["took"] = str(timedelta(seconds=round((latest - first).total_seconds() + steps[-1].seconds)))
        last = max(at.step for at in steps)
        facts |= {"step": str(last)} if last else {}
        facts["episodes"] = f"{sum(at.episodes + at.env_errors for at in steps):,}"
    return Overview(facts, _result(opened, validated), [at.success for at in shown])


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


def status_of(opened: OpenedSource) -> str:
    """Return `running`, `ended` or `stopped`; empty if the folder does not tell."""
    lock, folder = opened.source.folder / LOCK_FILE, opened.source.folder
    if not lock.is_file():
        return ""
    # not by locking: a viewer in the process of the run would release the run's own lock
    if re.search(rf":{lock.stat().st_ino} ", Path("/proc/locks").read_text() if Path("/proc/locks").exists() else ""):
        return "running"
    if opened.source.kind == "training":
        reached = max((at.step for at in summarize_steps(opened.index, Filter()) if at.episodes), default=0)
        return "ended" if 0 < read_plan(folder) <= reached else f"stopped at step {reached}"
    return "ended" if (folder / REPORT).is_file() else "stopped"


def _result(opened: OpenedSource, validated: list[StepSummary]) -> str:
    """Return the success as the report of an evaluation has it, or that of the first and the last validation."""
    if (opened.source.folder / REPORT).is_file():
        success = read_report(opened.source.folder)["results"][-1]["success"]
        return "no valid episode" if success is None else "success {mean:.3f} [{low:.3f}, {high:.3f}]".format(**success)
    if not validated:
        return ""
    rates = success_rates(opened.index)
    first, last = (rates[at.purpose, at.step] for at in (validated[0], validated[-1]))
    episodes = validated[-1].episodes
    if validated[0].step == validated[-1].step:
        return f"success {last} in {counted(episodes, 'episode')}"
    steps = f"validation, step {validated[0].step} → {validated[-1].step}"
    return f"success {first} → {last} ({steps}; {counted(episodes, 'episode')})"


def changed_settings(folder: Path) -> list[tuple[str, str, str]]:
    """Return key, base value and value of each setting of a training run that differs from the base recipe.

    Only settings that the run recorded are compared; base values that refer to other settings are left out.
    """
    try:
        recorded = read_settings(folder, SETTINGS_FILE)
        if not recorded:
            return []
        with _composing:
            base = reference("agent_grpo")
        found = differences(base, recorded)
        return [(key, str(was), str(now)) for key, was, now in found if "${" not in str(was)]
    except Exception as error:  # boundary: the base recipe composes with verl's YAML, which may not be installed
        logger.info("the settings of %s are not compared with the base recipe: %s", folder, error)
        return []
