"""Outcomes of earlier runs of a suite, which its folder holds, beside those of this run."""

import json
from collections.abc import Sequence
from pathlib import Path

from verl_agent.evaluation.suite.report import JSON
from verl_agent.evaluation.suite.run import Outcome, outcome_of_report
from verl_agent.evaluation.suite.settings import Suite
from verl_agent.results.folder import REPORT, read_report


def with_earlier(suite: Suite, outcomes: Sequence[Outcome], into: Path) -> list[Outcome]:
    """Return the outcomes of a run and, for all other evaluations and models, those that the folder holds.

    Results are read again from the folders of the evaluations. `suite.json` has the reasons for which the others were
    skipped or failed.

    Args:
        suite: the suite; its overrides are not read.
        outcomes: outcomes of this run.
        into: folder of the suite.

    Returns:
        The outcomes in the order of the suite's file, and of each evaluation those of this run first.
    """
    played = list(dict.fromkeys(one.model for one in outcomes))
    unplayed = _without_result(into)
    reports = {path.parent.parent.name for name in suite.listed for path in into.glob(f"*/{name}/{REPORT}")}
    models = [*played, *sorted((reports | {model for model, _ in unplayed}) - set(played))]
    found = {(one.model, one.evaluation): one for one in outcomes}
    for name in suite.listed:
        for model in models:
            folder = (into / model / name).resolve()
            if (model, name) in found:
                continue
            if (folder / REPORT).is_file():
                env = str(read_report(folder)["config"]["env"]["name"])
                found[model, name] = outcome_of_report(model, name, env, folder)
            elif (model, name) in unplayed:
                found[model, name] = unplayed[model, name]
    return [found[model, name] for name in suite.listed for model in models if (model, name) in found]


def _without_result(into: Path) -> dict[tuple[str, str], Outcome]:
    """Return the skipped and failed outcomes of the last run, by the names of model and evaluation."""
    if not (into / JSON).is_file():
        return {}
    rows = json.loads((into / JSON).read_text(encoding="utf-8"))["rows"]
    return {
        (row["model"], row["evaluation"]): Outcome(
            row["model"], row["evaluation"], "", into / row["model"] / row["evaluation"], row["status"], row["reason"]
        )
        for row in rows
        if row["status"] in ("skipped", "failed")
    }
