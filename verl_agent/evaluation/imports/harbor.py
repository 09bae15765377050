"""Trials of Harbor (https://github.com/laude-institute/harbor): files of a job's folder, and its format ATIF."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_agent.envs.strict_json import read_json
from verl_agent.evaluation.imports.conversation import ImportSettings, SourceEpisode
from verl_agent.evaluation.imports.messages import messages_of
from verl_agent.evaluation.imports.texts import Found, lines_of
from verl_agent.evaluation.imports.values import (
    Json,
    RefusedError,
    optional,
    required,
    shown,
    text_or_none,
    time_or_none,
)

VERSIONS = tuple(f"ATIF-v1.{minor}" for minor in range(9))
GRADED = frozenset({
    *("NonZeroAgentExitCodeError", "AgentTimeoutError", "AgentSafetyRefusalError", "ContentPolicyViolationError"),
    *("ContextWindowExceededError", "OutputTokenExceededError", "ContextLengthExceededError"),
    "OutputLengthExceededError",
})  # fmt: skip
"""Exceptions of an agent whose reward is valid (Harbor 0.26.0, models/trial/error_policy.py), for a `result.json` that
does not state it."""


def atif_of(path: Path) -> Iterator[Found]:
    """Yield the trajectory of a file, those of JSON lines, or of a job's folder that of each trial or of each step.

    Further trajectories of a trial, such as those of summaries, are yielded by name to be counted; trials without a
    trajectory are yielded as refused.
    """
    if not path.is_dir():
        yield from lines_of(path) if path.suffix == ".jsonl" else [_trajectory(path.resolve(), path.name)]
        return
    path, done = path.resolve(), set[Path]()
    for file in sorted(path.rglob("trajectory*.json")):
        name = str(file.relative_to(path))
        if file.name == "trajectory.json" and file.parent.name == "agent" and "artifacts" not in Path(name).parts:
            done.add(_place(file)[0])
            yield _trajectory(file, name)
        else:
            folder = "" if file.parent.name == "agent" else f"{file.parent.name}/"
            yield Found(name, left_out=folder + re.sub(r"\d+", "N", file.name))
    for trial in sorted({file.parent for name in ("result.json", "trial.log") for file in path.rglob(name)}):
        if "artifacts" not in trial.relative_to(path).parts:
            yield from _missing(trial, path, trial in done)


def _place(file: Path) -> tuple[Path, str]:
    """Return the folder of a trajectory's trial, and the name of its step; "" in a trial of one step."""
    above = file.parent.parent
    return (above.parent.parent, above.name) if above.parent.name == "steps" else (above, "")


def _trajectory(file: Path, source: str) -> Found:
    trial, step = _place(file)
    try:
        return Found(source, file.read_bytes(), {"result": _result(trial), "step": step}, torn=True)
    except RefusedError as error:
        return Found(source, refused=error)


def _result(trial: Path) -> Any:
    """Return the value of a trial's `result.json`; an empty one without the file."""
    file = trial / "result.json"
    try:
        return read_json(file.read_bytes().decode("utf-8-sig")) if file.is_file() else {}
    except ValueError as error:
        raise RefusedError("a damaged result.json", str(error)) from error


def _missing(trial: Path, path: Path, done: bool) -> Iterator[Found]:
    """Yield a trial without a trajectory, or its steps without one, as refused."""
    source = str(trial.relative_to(path))
    try:
        result = _result(trial)
        problem, steps = optional(result, "exception_info", dict), optional(result, "step_results", list)
    except RefusedError as error:
        if not done:
            yield Found(f"{source}/result.json", refused=error)
        return
    if not done and ("task_name" in result or (trial / "trial.log").exists()):  # else it is the result of a job
        yield Found(source, refused=RefusedError("a trial without a trajectory", _said(problem)))
    for step in steps if done else ():
        name = optional(step, "step_name", str)
        if not (trial / "steps" / name / "agent" / "trajectory.json").is_file():
            said = _said(optional(step, "exception_info", dict))
            yield Found(f"{source}/steps/{name}", refused=RefusedError("a step without a trajectory", said))


def _said(problem: Json) -> str:
    return f"{problem.get('exception_type')}: {problem.get('exception_message')}" if problem else ""


def read_atif(value: Json, beside: Json, settings: ImportSettings) -> SourceEpisode:
    """Return the episode of a trajectory. Steps that were copied from another one are its prompt."""
    if value.get("schema_version") not in VERSIONS:
        found = shown(value.get("schema_version"))
        raise RefusedError("no ATIF 1.0 to 1.8", f"schema_version is {found}. Allowed: {VERSIONS[0]} to {VERSIONS[-1]}")
    if value.get("continued_trajectory_ref"):
        raise RefusedError("a trajectory that continues in another file", shown(value["continued_trajectory_ref"]))
    messages: list[Json] = []
    episode = SourceEpisode([])
    steps = required(value, "steps", list)
    for number, step in enumerate(steps, start=1):
        if required(step, "step_id", int) != number:
            raise RefusedError("step_ids that are not 1, 2, 3", f"step {number} has the step_id {step['step_id']}")
        metrics = optional(step, "metrics", dict)
        used = ("step_id", "timestamp", "model_name", "llm_call_count", "is_copied_context", "metrics", "observation")
        messages.append({name: one for name, one in step.items() if name not in used} | {
            "sampled": not step.get("is_copied_context"),
            "author": "overseer" if step.get("llm_call_count") == 0 else "policy",
            "tokens": metrics.get("completion_tokens") or 0,
        })  # fmt: skip
        episode.count(metrics, ("completion_tokens",), "metrics.")
        role = "tool" if step.get("tool_calls") else "user"
        for one in optional(optional(step, "observation", dict), "results", list):
            said, call = one.get("content") or "", one.get("source_call_id")
            messages.append({"role": role, "content": said, "tool_call_id": call})
            episode.count(one, ("content", "source_call_id"), "observation.")
    episode.messages = messages_of(messages)
    episode.model = optional(optional(value, "agent", dict), "model_name", str) or None
    episode.started_at = time_or_none(steps[0].get("timestamp") if steps else None, "timestamp")
    _add_result(episode, optional(beside, "result", dict), beside.get("step", ""), settings)
    episode.count(value, ("schema_version", "session_id", "trajectory_id", "agent", "steps"))
    return episode


def _add_result(episode: SourceEpisode, result: Json, step: str, settings: ImportSettings) -> None:
    """Add task, return and error of a trial or its step. An exception after which no reward is valid is an error."""
    part, task = result, text_or_none(result.get("task_name"), "task_name")
    if step and result:
        steps = optional(result, "step_results", list)
        part = next((one for one in steps if optional(one, "step_name", str) == step), {})
        if not part:
            raise RefusedError("a step that result.json does not have", step)
        task = f"{task}/{step}" if task else None
    episode.task = task
    rewards = optional(optional(part, "verifier_result", dict), "rewards", dict)
    episode.choose(rewards, settings.score, "reward")
    problems = [optional(one, "exception_info", dict) for one in ((result, part) if step else (result,))]
    problems = [one for one in problems if one]
    stated = None if step else result.get("reward_valid")  # of a trial, not of its steps
    valid = all(map(_graded, problems)) if stated is None else bool(stated)
    if problems and not (valid and rewards):
        episode.error = _said(problems[-1])
    elif rewards and not valid:
        episode.error = "reward_valid is false"
    else:
        episode.left_out.update(f"exception.{one.get('exception_type')}" for one in problems)


def _graded(problem: Json) -> bool:
    """Return whether a reward is valid after an exception."""
    stated = optional(problem, "policy", dict).get("has_valid_reward")
    return problem.get("exception_type") in GRADED if stated is None else bool(stated)
