"""Run of a suite: one evaluation after another, each in a process of its own, for one or several models."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from verl_agent.config.keys import literal
from verl_agent.errors import ConfigError, EnvError
from verl_agent.evaluation.job import model_identity
from verl_agent.evaluation.policies import is_model, start_sessions
from verl_agent.evaluation.settings import EvaluationConfig, UnresolvedError
from verl_agent.evaluation.suite.settings import Suite, compose_entry
from verl_agent.models.resolve import resolve_model
from verl_agent.results.folder import REPORT, SETTINGS, model_name, read_report
from verl_agent.runs.identity import differences, read_settings
from verl_agent.runs.processes import run_ending_all_children
from verl_agent.runs.subprocess_run import run_command
from verl_agent.system.resources import make_folder
from verl_agent.terminal import Console, say

PROGRAM = (sys.executable, "-m", "verl_agent.commands.evaluate")
Status = Literal["played", "partial", "skipped", "failed"]
OTHER_MODEL = "its folder holds results of another model or of other weights"
"""Reason for which results are not those of the model of their column."""


@dataclass(frozen=True, slots=True)
class SuiteOutcome:
    """Outcome of one evaluation of a suite.

    Attributes:
        env: name of the environment; empty if the evaluation does not compose.
        status: `played`: all planned episodes; `partial`: some of them; `skipped`: what it needs is missing;
            `failed`: no episode, because of an error.
        reason: reason for which the evaluation was skipped or is not complete; else empty.
    """

    model: str
    evaluation: str
    env: str
    folder: Path
    status: Status
    reason: str = ""


def models_of(suite: Suite, models: Sequence[str]) -> dict[str, list[str]]:
    """Return the overrides that name each model, by the name of its folder.

    Args:
        models: values of `model.path`; empty if the overrides name the model.

    Raises:
        ConfigError: no model is named, or two have the same name.
    """
    keys = ("model.path=", "model.api.name=")
    named = [override.partition("=")[2] for override in suite.common if override.startswith(keys)]
    if bool(models) == bool(named):
        raise ConfigError(
            "name the models either with --model, which may be repeated, or one with model.path=... or "
            "model.api.kind=... model.api.name=..."
        )
    if named:
        return {model_name(named[-1]): []}
    found = {model_name(model): [f"model.path={literal(model)}"] for model in models}
    if len(found) < len(models):
        raise ConfigError(
            f"two of the models have the same name: {', '.join(models)}. Play them with different --into."
        )
    return found


def compose_suite(
    suite: Suite, models: Mapping[str, Sequence[str]]
) -> dict[tuple[str, str], EvaluationConfig | UnresolvedError]:
    """Return the settings of each evaluation with each model, by the names of both.

    The value is the error if an evaluation with `needs` refers to something that this machine does not have.

    Raises:
        ConfigError: a setting of an evaluation is not allowed.
    """
    composed: dict[tuple[str, str], EvaluationConfig | UnresolvedError] = {}
    for name, entry in suite.entries.items():
        for model, overrides in models.items():
            try:
                composed[name, model] = compose_entry(replace(suite, common=[*suite.common, *overrides]), name)
            except UnresolvedError as error:
                if not entry.needs:
                    raise ConfigError(f"{name}: {error}") from error
                composed[name, model] = error
    return composed


def play_suite(suite: Suite, models: Mapping[str, Sequence[str]], into: Path, console: Console) -> list[SuiteOutcome]:
    """Play all evaluations for all models; each resumes in its folder `<into>/<model>/<evaluation>`.

    The settings of all evaluations are checked first. A failed evaluation does not stop the others.

    Raises:
        ConfigError: a setting of an evaluation is not allowed, or the folder cannot be written; nothing was played.
    """
    composed, outcomes = compose_suite(suite, models), []
    make_folder(into, "--into")
    missing: dict[str, str | None] = {}
    for (name, model), config in composed.items():
        folder, needs = (into / model / name).resolve(), suite.entries[name].needs
        console.rule(f"{model}: {name}", align="left")
        env = "" if isinstance(config, UnresolvedError) else config.run.env.name
        if isinstance(config, UnresolvedError):
            reason: str | None = str(config)
        elif needs and name not in missing:
            reason = missing[name] = missing_need(config)
        else:
            reason = missing.get(name)
        if reason is not None or isinstance(config, UnresolvedError):
            text = f"needs {needs}. {reason}"
            say(console, f"{name} is skipped: {text}")
            outcomes.append(SuiteOutcome(model, name, env, folder, "skipped", text))
            continue
        recipe, overrides = suite.recipe(name), [*suite.common, *models[model]]
        location = ["--config-dir", str(recipe.parent), "--config-name", recipe.stem]
        given = [*replace(suite, common=overrides).overrides(name), f"evaluation.output_dir={literal(str(folder))}"]
        code = run_command([*PROGRAM, *location, *given])
        if code and (folder / REPORT).is_file() and not plays_model(folder, config):
            reason = f"it ended with status {code}; {OTHER_MODEL}"
            outcomes.append(SuiteOutcome(model, name, env, folder, "failed", reason))
            continue
        outcomes.append(outcome_of_report(model, name, env, folder, code))
    return outcomes


def missing_need(config: EvaluationConfig) -> str | None:
    """Return the error that prevents the first task of an evaluation from starting; None if it starts."""
    try:
        item = config.run.tasks(config.evaluation.tasks)[0]

        async def start() -> None:
            async with start_sessions(None, config, hosts=1) as new_session:
                session = new_session()
                await session.reset(item)
                await session.close()

        run_ending_all_children(start())
    except (ConfigError, EnvError) as error:
        return str(error)
    return None


def plays_model(folder: Path, config: EvaluationConfig) -> bool:
    """Return True if the results in a folder are those of the model that a config names, with its present weights."""
    model = config.model
    if config.api is None and is_model(model):
        try:
            model = resolve_model(model, "model.path")
        except ConfigError:
            return False
    server = {} if config.api is None else {"model.api": {"base_url": config.api.base_url}}
    return not list(differences(played_model(folder), {**model_identity(config, model), **server}))


def played_model(folder: Path) -> dict[str, Any]:
    """Return name, weight files and server of the model whose results a folder holds, as far as they are recorded."""
    settings, found = read_settings(folder, SETTINGS), {"model": read_report(folder, "model")["model"]}
    if "weights" in settings:
        found["weights"] = settings["weights"]
    if "model.api" in settings:
        found["model.api"] = {"base_url": settings["model.api"]["base_url"]}
    return found


def outcome_of_report(model: str, name: str, env: str, folder: Path, code: int = 0) -> SuiteOutcome:
    """Return the outcome of an evaluation that has ended, from its report and its exit status."""
    error = f"it ended with status {code}; its error is above" if code else ""
    if not (folder / REPORT).is_file():
        return SuiteOutcome(model, name, env, folder, "failed", error or "it recorded no episode")
    report = read_report(folder)
    complete = report["played"] >= report["planned"] and not code
    played = f"{report['played']} of {report['planned']} episodes"
    reason = "" if complete else ": ".join(filter(None, [played, error]))
    return SuiteOutcome(model, name, env, folder, "played" if complete else "partial", reason)
