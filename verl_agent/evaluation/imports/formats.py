"""Formats of other programs: OpenAI's messages, Harbor's ATIF, verifiers' traces and Inspect's logs."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

from verl_agent.evaluation.imports.conversation import ImportSettings, SourceEpisode
from verl_agent.evaluation.imports.harbor import atif_of, read_atif
from verl_agent.evaluation.imports.messages import messages_of
from verl_agent.evaluation.imports.texts import Found, lines_of, samples_of, traces_of
from verl_agent.evaluation.imports.values import (
    Json,
    RefusedError,
    number_or_none,
    optional,
    required,
    text_or_none,
    time_or_none,
)
from verl_agent.trace.record import EPISODE_RECORD_VERSION, EpisodeRecord, parse_record
from verl_agent.types import Message, StopReason

SCORES: Mapping[str, float] = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Scores that Inspect writes as letters, and their numbers (`value_to_float`)."""
INSPECT_LIMITS = {"message": StopReason.TURN_LIMIT, "turn": StopReason.TURN_LIMIT, "token": StopReason.EPISODE_TOKENS}
TOKEN_LIMITS = ("max_input_tokens", "max_output_tokens", "max_total_tokens")
VERIFIERS_LIMITS = {"max_turns": StopReason.TURN_LIMIT, **dict.fromkeys(TOKEN_LIMITS, StopReason.EPISODE_TOKENS)}
Read: TypeAlias = SourceEpisode | EpisodeRecord
"""An episode of another program, or a record that this package wrote into another format."""


def read_messages(value: Json, beside: Json, settings: ImportSettings) -> Read:
    """Return the episode of a line with `messages`, and perhaps with `reward`, `task`, `category` and `model`."""
    names = ("task", "category", "model")
    episode = SourceEpisode(messages_of(required(value, "messages", list)), reward=number_or_none(value.get("reward")))
    episode.task, episode.category, episode.model = (
        text_or_none(value.get(name) if name == "task" else value.get(name) or None, name) for name in names
    )
    episode.count(value, ("messages", "reward", *names))
    return episode


def read_verifiers(value: Json, beside: Json, settings: ImportSettings) -> Read:
    """Return the episode of an agent's trace. A trace that is not `ok` and has an error is an environment error."""
    agent = optional(value, "agent", dict)
    if agent.get("trainable") is False:
        raise RefusedError("an agent that is not trained", f"agent.trainable of {agent.get('name')!r} is false")
    nodes = required(value, "nodes", list)
    if [node.get("parent") for node in nodes] != [None, *range(len(nodes))][: len(nodes)]:
        raise RefusedError("a conversation with branches", "a record has one")
    calls = optional(value, "calls", list)
    tokens = {call.get("node"): optional(call, "usage", dict).get("completion_tokens") for call in calls}
    messages = messages_of([
        {**required(node, "message", dict), "sampled": bool(node.get("sampled")), "tokens": tokens.get(number) or 0}
        for number, node in enumerate(nodes)
    ])  # fmt: skip
    scores: dict[str, float | None] = {}
    weighted: list[float] = []
    for name, one in optional(value, "rewards", dict).items():
        scores[name] = score = None if one is None else number_or_none(one.get("score"))
        if score is not None:
            weighted.append(score * (number_or_none(one.get("weight", 1), "weight") or 0.0))
    task, info, timing = (optional(value, name, dict) for name in ("task", "info", "timing"))
    data = optional(task, "data", dict)
    names = (data.get("id"), data.get("name"), task.get("key"), task.get("hash"))
    start = number_or_none(timing.get("start"), "timing.start")
    scored = optional(timing, "scoring", dict) or optional(timing, "agent", dict)
    end = number_or_none(scored.get("end"), "timing.end")
    errors = [one for part in (value, beside) if not part.get("ok") for one in optional(dict(part), "errors", list)]
    stop = next((one for one in StopReason if one == info.get("stop")), None)
    episode = SourceEpisode(
        messages,
        reward=sum(weighted) if weighted else None,
        task=text_or_none(next((one for one in names if one not in (None, "")), None), "task.data.id"),
        category=text_or_none(data.get("category") or None, "task.data.category"),
        model=text_or_none(next((call.get("model") for call in calls if call.get("model")), None), "model"),
        started_at=time_or_none(start or None, "timing.start"),
        seconds=end - start if start and end else None,
        stop=stop or VERIFIERS_LIMITS.get(optional(value, "stop_condition", str)),
        error=f"{errors[-1].get('type')}: {errors[-1].get('message')}" if errors else "",
    )
    if settings.score:
        episode.choose(scores, settings.score)  # without the weight, which counts in the sum alone
    read = ("version", "id", "verifiers", "task", "agent", "nodes", "calls", "rewards", "timing", "ok")
    said = ("errors",) if errors else ()
    episode.count(value, (*read, *said, "stop_condition", "is_completed"))
    episode.count(beside, ("id", "task", "ok", *said), "episode.")
    return episode


def read_inspect(value: Json, beside: Json, settings: ImportSettings) -> Read:
    """Return the episode of a sample; the record itself, if `verl-agent view --export` wrote the sample."""
    metadata = optional(value, "metadata", dict)
    if metadata.get("version") == EPISODE_RECORD_VERSION and "prompt_length" in metadata:
        return _exported(value, metadata)
    attached = optional(value, "attachments", dict)
    messages, unread = [], Counter[str]()
    for source in required(value, "messages", list):
        message = {name: part for name, part in source.items() if name not in ("id", "source", "function", "model")}
        message["content"] = _attached(source.get("content"), attached)
        message["sampled"] = source.get("source") != "input"
        if source.get("role") == "tool" and (failure := optional(source, "error", dict)):
            # Inspect shows the model the error in place of the content (`openai_chat_message` of model/_openai.py).
            if message["content"]:
                unread["content of a failed tool"] += 1
            message["content"] = f"Error: {_attached(optional(failure, 'message', str), attached)}"
        messages.append(message)
    output, limit = optional(value, "output", dict), optional(value, "limit", dict).get("type")
    cut = [one.get("stop_reason") for one in optional(output, "choices", list)][:1] == ["max_tokens"]
    task, number = text_or_none(beside.get("task"), "eval.task"), text_or_none(value.get("id"), "id")
    if task and (arguments := optional(beside, "task_args", dict)):  # other arguments make another task
        task += json.dumps(arguments, sort_keys=True)
    episode = SourceEpisode(
        messages_of(messages),
        task=f"{task}/{number}" if task and number else number,
        model=text_or_none(output.get("model") or None, "output.model"),
        started_at=time_or_none(value.get("started_at"), "started_at"),
        seconds=number_or_none(value.get("total_time"), "total_time"),
        stop=INSPECT_LIMITS.get(limit) if limit else StopReason.TURN_TOKENS if cut else None,
        error=optional(optional(value, "error", dict), "message", str),
    )
    episode.left_out.update(unread)
    episode.choose(_scores(optional(value, "scores", dict)), settings.score)
    read = ("id", "uuid", "epoch", "input", "messages", "output", "scores", "error", "limit", "attachments")
    episode.count(value, (*read, "started_at", "total_time"))
    return episode


def _scores(scores: Json) -> dict[str, Any]:
    """Return the scores of a sample by name; the parts of a score that is an object as `score.part`."""
    found: dict[str, Any] = {}
    for name, score in scores.items():
        one = score.get("value")
        found |= {f"{name}.{part}": value for part, value in one.items()} if isinstance(one, dict) else {name: one}
    return {name: SCORES.get(one, one) if isinstance(one, str) else one for name, one in found.items()}


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


def _attached(content: Any, attached: Json) -> Any:
    """Return content in which a reference to an attachment of the log is replaced by it."""
    if isinstance(content, list):
        return [_attached(one, attached) for one in content]
    if isinstance(content, dict):
        return {name: _attached(one, attached) for name, one in content.items()}
    if isinstance(content, str) and content.startswith("attachment://"):
        return attached.get(content.removeprefix("attachment://"), content)
    return content


FORMATS: Mapping[str, tuple[Callable[[Path], Iterator[Found]], Callable[[Json, Json, ImportSettings], Read]]] = {
    "messages": (lines_of, read_messages),
    "atif": (atif_of, read_atif),
    "verifiers": (traces_of, read_verifiers),
    "inspect": (samples_of, read_inspect),
}
"""Formats by name: the JSON texts of a path, and the episode of each."""
