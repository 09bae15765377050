"""Formats of other programs: OpenAI's messages, Harbor's ATIF, verifiers' traces and Inspect's logs."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias, cast

from pydantic import TypeAdapter

from verl_agent.evaluation.imports.conversation import (
    ImportSettings,
    RefusedError,
    SourceEpisode,
    SourceMessage,
    number_or_none,
)
from verl_agent.evaluation.imports.texts import Found, atif_of, lines_of, samples_of
from verl_agent.trace.record import EPISODE_RECORD_VERSION, EpisodeRecord, parse_record
from verl_agent.types import Message, StopReason

MESSAGES = TypeAdapter(list[SourceMessage])
SCORES: Mapping[Any, float] = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, True: 1.0, False: 0.0}
"""Scores that Inspect writes as letters or as truth values, and their numbers (`value_to_float`)."""
INSPECT_LIMITS = {"message": StopReason.TURN_LIMIT, "turn": StopReason.TURN_LIMIT, "token": StopReason.EPISODE_TOKENS}
TOKEN_LIMITS = ("max_input_tokens", "max_output_tokens", "max_total_tokens")
VERIFIERS_LIMITS = {"max_turns": StopReason.TURN_LIMIT, **dict.fromkeys(TOKEN_LIMITS, StopReason.EPISODE_TOKENS)}
Json = Mapping[str, Any]
Read: TypeAlias = SourceEpisode | EpisodeRecord
"""An episode of another program, or a record that this package wrote into another format."""


def read_messages(value: Json, beside: Json, settings: ImportSettings) -> Iterator[Read]:
    """Yield the episode of a line with `messages`, and perhaps with `reward`, `task`, `category` and `model`."""
    names = ("task", "category", "model")
    messages, reward = MESSAGES.validate_python(value["messages"]), number_or_none(value.get("reward"))
    task, category, model = (_text(value.get(name)) for name in names)
    episode = SourceEpisode(messages, reward=reward, task=task, category=category, model=model)
    yield _counted(episode, value, ("messages", "reward", *names))


def read_atif(value: Json, beside: Json, settings: ImportSettings) -> Iterator[Read]:
    """Yield the episode of a trajectory. Steps that were copied from another one are its prompt."""
    messages: list[SourceMessage] = []
    left_out: Counter[str] = Counter()
    for step in value["steps"]:
        results = (step.get("observation") or {}).get("results") or ()
        used = ("step_id", "timestamp", "model_name", "llm_call_count", "is_copied_context", "metrics", "observation")
        metrics = step.get("metrics") or {}
        message = {name: one for name, one in step.items() if name not in used}
        message["sampled"] = not step.get("is_copied_context")
        message["author"] = "overseer" if step.get("llm_call_count") == 0 else "policy"
        message["tokens"] = metrics.get("completion_tokens") or 0
        left_out.update(f"metrics.{name}" for name, one in metrics.items() if one and name != "completion_tokens")
        messages.append(SourceMessage.model_validate(message))
        role = "tool" if messages[-1].tool_calls else "user"
        for result in results:
            said, call = result.get("content") or "", result.get("source_call_id")
            messages.append(SourceMessage.model_validate({"role": role, "content": said, "tool_call_id": call}))
            left_out.update(f"observation.{name}" for name in ("subagent_trajectory_ref", "extra") if result.get(name))
    agent, rewards = value.get("agent") or {}, (beside.get("verifier_result") or {}).get("rewards") or {}
    problem = beside.get("exception_info") or {}
    episode = SourceEpisode(
        messages,
        reward=_chosen(rewards, settings.score, left_out, "reward"),
        task=_text(beside.get("task_name")),
        model=_text(agent.get("model_name")),
        started_at=_time((value["steps"] or [{}])[0].get("timestamp")),
        error=f"{problem['exception_type']}: {problem['exception_message']}" if problem and not rewards else "",
        left_out=left_out,
    )
    yield _counted(episode, value, ("schema_version", "session_id", "trajectory_id", "agent", "steps"))


def read_verifiers(value: Json, beside: Json, settings: ImportSettings) -> Iterator[Read]:
    """Yield one episode for each trace of an agent."""
    for trace in value.get("traces", [value]):
        nodes, left_out = trace["nodes"], Counter[str]()
        if [node.get("parent") for node in nodes] != [None, *range(len(nodes) - 1)]:
            raise RefusedError("a conversation with branches", "a record has one")
        messages = MESSAGES.validate_python([{**one["message"], "sampled": bool(one.get("sampled"))} for one in nodes])
        calls = {call.get("node"): call.get("usage") or {} for call in trace.get("calls", ())}
        for number, message in enumerate(messages):
            message.tokens = calls.get(number, {}).get("completion_tokens", 0)
        rewards = trace.get("rewards") or {}
        parts = {name: one and one["score"] * one.get("weight", 1.0) for name, one in rewards.items()}
        known = [part for part in parts.values() if part is not None]
        total = sum(known) if known else None
        reward = _chosen(parts, settings.score, left_out) if settings.score else number_or_none(total)
        task, info, timing = trace["task"], trace.get("info") or {}, trace.get("timing") or {}
        stop = next((one for one in StopReason if one == info.get("stop")), None)
        start, end = timing.get("start"), (timing.get("scoring") or timing.get("agent") or {}).get("end")
        errors = trace.get("errors") or ()
        episode = SourceEpisode(
            messages,
            reward=reward,
            task=_text(task["data"].get("id") or task["data"].get("name") or task.get("key") or task.get("hash")),
            category=_text(task["data"].get("category")),
            model=_text(next((call.get("model") for call in trace.get("calls", ()) if call.get("model")), None)),
            started_at=datetime.fromtimestamp(start, UTC) if start else None,
            seconds=end - start if start and end else None,
            stop=stop or VERIFIERS_LIMITS.get(trace.get("stop_condition") or ""),
            error=f"{errors[-1]['type']}: {errors[-1]['message']}" if errors and not known else "",
            left_out=left_out,
        )
        read = ("version", "id", "verifiers", "task", "agent", "nodes", "calls", "rewards", "timing", "errors", "ok")
        yield _counted(episode, trace, (*read, "stop_condition", "is_completed"))


def read_inspect(value: Json, beside: Json, settings: ImportSettings) -> Iterator[Read]:
    """Yield the episode of a sample; the record itself, if `verl-agent view --export` wrote the sample."""
    metadata = value.get("metadata") or {}
    if metadata.get("version") == EPISODE_RECORD_VERSION and "prompt_length" in metadata:
        yield _exported(value, metadata)
        return
    attached = value.get("attachments") or {}
    messages = []
    for source in value["messages"]:
        message = {name: part for name, part in source.items() if name not in ("id", "source", "function", "model")}
        message["content"] = _attached(source.get("content"), attached)
        message["sampled"] = source.get("source") != "input"
        messages.append(SourceMessage.model_validate(message))
    scores = {name: one.get("value") for name, one in (value.get("scores") or {}).items()}
    left_out: Counter[str] = Counter()
    output, limit = value.get("output") or {}, (value.get("limit") or {}).get("type")
    cut = [one.get("stop_reason") for one in output.get("choices") or ()][:1] == ["max_tokens"]
    episode = SourceEpisode(
        messages,
        reward=_chosen(scores, settings.score, left_out),
        task=str(value["id"]),
        model=_text(output.get("model")),
        started_at=_time(value.get("started_at")),
        seconds=number_or_none(value.get("total_time")),
        stop=INSPECT_LIMITS.get(limit) if limit else StopReason.TURN_TOKENS if cut else None,
        error=(value.get("error") or {}).get("message", ""),
        left_out=left_out,
    )
    read = ("id", "epoch", "input", "messages", "output", "scores", "error", "limit", "started_at", "total_time")
    yield _counted(episode, value, (*read, "attachments"))


def _exported(value: Json, metadata: Json) -> EpisodeRecord:
    """Return the record that `verl_agent.viewer.export.inspect_log` wrote."""
    messages: list[Message] = []
    turns: list[dict[str, Any]] = []
    left = list(value["messages"])
    while left:
        message = dict(left.pop(0))
        told = message.pop("metadata", None)
        if message["role"] == "tool":
            answers = [message["content"]]
            while left and left[0]["role"] == "tool":
                answers.append(left.pop(0)["content"])
            content = "\n\n".join(answers)
            message = {"role": "tool", "content": content} | ({"answers": answers} if len(answers) > 1 else {})
        message.pop("tool_calls", None)
        messages.append(cast(Message, message))
        if message["role"] != "assistant" and turns and "observation" not in turns[-1]:
            turns[-1]["observation"] = message["content"]
        if told is not None:
            turns.append({"reply": message["content"], **told})
    return parse_record({**metadata, "turns": turns, "messages": messages})


def _counted(episode: SourceEpisode, value: Json, known: Sequence[str]) -> SourceEpisode:
    """Return an episode that counts the values of its source that a record cannot hold."""
    episode.left_out.update(name for name, one in value.items() if one and name not in known)
    return episode


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _time(value: Any) -> datetime | None:
    found = None if value is None else datetime.fromisoformat(str(value))
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found


def _chosen(scores: Json, name: str, left_out: Counter[str], usual: str = "") -> float | None:
    """Return the score that the user named, else the usual one or the only one. Count the others.

    Returns:
        None without a score, for a score that is null, and for several of which none was named.

    Raises:
        RefusedError: there are scores, but not the named one.
    """
    if name and scores and name not in scores:
        raise RefusedError(f"no score {name!r}", f"Set --score to one of: {', '.join(map(str, scores))}")
    name = name or (usual if usual in scores else next(iter(scores)) if len(scores) == 1 else "")
    left_out.update(f"score.{one}" for one, value in scores.items() if one != name and value is not None)
    value = scores.get(name)
    return SCORES[value] if isinstance(value, str | bool) and value in SCORES else number_or_none(value)


def _attached(content: Any, attached: Json) -> Any:
    """Return content in which a reference to an attachment of the log is replaced by it."""
    if isinstance(content, list):
        return [_attached(one, attached) for one in content]
    if isinstance(content, dict):
        return {name: _attached(one, attached) for name, one in content.items()}
    if isinstance(content, str) and content.startswith("attachment://"):
        return attached.get(content.removeprefix("attachment://"), content)
    return content


@dataclass(frozen=True, slots=True)
class SourceFormat:
    """Format: the JSON texts of a path, and the episodes of each."""

    texts: Callable[[Path], Iterator[Found]]
    read: Callable[[Json, Json, ImportSettings], Iterator[Read]]


FORMATS: Mapping[str, SourceFormat] = {
    "messages": SourceFormat(lines_of, read_messages),
    "atif": SourceFormat(atif_of, read_atif),
    "verifiers": SourceFormat(lines_of, read_verifiers),
    "inspect": SourceFormat(samples_of, read_inspect),
}
