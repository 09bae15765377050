"""Conversation as another program recorded it, and its conversion to an episode record.

A record alternates: a prompt, then one reply and one observation in turn. A conversation that does not is refused.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, AliasPath, BaseModel, BeforeValidator, ConfigDict, Field

from verl_agent.agents.functions import FunctionCalls
from verl_agent.envs.action_format import ToolFormat
from verl_agent.envs.call_formats import CALL_FORMATS
from verl_agent.envs.model_api.chat import with_calls
from verl_agent.envs.strict_json import read_json
from verl_agent.rollout.actions import joined
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, to_record
from verl_agent.types import (
    Author,
    CallResult,
    Episode,
    Message,
    Reply,
    StepResult,
    StopReason,
    TaskItem,
    ToolCall,
    Turn,
)

ROLES: Mapping[str, str] = {"developer": "system", "agent": "assistant"}
"""Roles that formats name otherwise."""
UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC)
TEXT_PARTS = ("text", "input_text", "output_text")


class RefusedError(Exception):
    """An episode cannot be a record.

    Attributes:
        kind: reason in few words, under which the import counts it.
    """

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind


class SourceCall(BaseModel):
    """Function call, in the form of OpenAI, ATIF, verifiers or Inspect."""

    model_config = ConfigDict(extra="allow", strict=True)
    name: str = Field(validation_alias=AliasChoices("name", "function_name", AliasPath("function", "name"), "function"))
    arguments: dict[str, Any] | str | None = Field(
        None, validation_alias=AliasChoices("arguments", AliasPath("function", "arguments"))
    )
    id: str = Field("", validation_alias=AliasChoices("id", "tool_call_id"))
    type: Literal["function"] = "function"
    parse_error: None = None

    def call(self) -> ToolCall:
        """Return the call; raise RefusedError if its arguments are no JSON object."""
        value: Any = self.arguments or {}
        try:
            value = read_json(value) if isinstance(value, str) else value
        except ValueError as error:
            raise RefusedError("arguments of a call that are no JSON", f"{self.name}: {error}") from error
        if not isinstance(value, dict):
            raise RefusedError("arguments of a call that are no JSON object", f"{self.name}: {value!r:.100}")
        return ToolCall(self.name, value)


class SourceMessage(BaseModel):
    """Message, in the form of OpenAI, ATIF, verifiers or Inspect.

    Attributes:
        sampled: False for a message of the role `assistant` that no model wrote, such as an example in the prompt.
    """

    model_config = ConfigDict(extra="allow", strict=True)
    role: Annotated[
        Literal["system", "user", "assistant", "tool"], BeforeValidator(lambda one: ROLES.get(one, one))
    ] = Field(validation_alias=AliasChoices("role", "source"))
    content: str | list[Any] | None = Field(None, validation_alias=AliasChoices("content", "message"))
    reasoning: str | None = Field(None, validation_alias=AliasChoices("reasoning_content", "reasoning"))
    tool_calls: list[SourceCall] | None = None
    tool_call_id: str | None = None
    sampled: bool = True
    author: Author = "policy"
    tokens: Annotated[int, Field(ge=0)] = 0
    weight: Literal[1] | None = None
    function_call: None = None
    audio: None = None

    def texts(self) -> tuple[str, str]:
        """Return content and reasoning; raise RefusedError for images and other content that is no text."""
        content: list[str] = []
        thoughts = [self.reasoning or ""]
        for part in [self.content or ""] if not isinstance(self.content, list) else self.content:
            value: Any = {"type": "text", "text": part} if isinstance(part, str) else part
            kind = str(value.get("type")) if isinstance(value, dict) else type(value).__name__
            text = value.get("text", value.get("reasoning")) if isinstance(value, dict) else None
            if kind not in (*TEXT_PARTS, "reasoning") or not isinstance(text, str):
                raise RefusedError(f"content of the type {kind.replace('image_url', 'image')!r}", "a record holds text")
            (thoughts if kind == "reasoning" else content).append(text)
        return "\n".join(content), "\n".join(filter(None, thoughts))


@dataclass(frozen=True, slots=True)
class ImportSettings:
    """Settings of an import.

    Attributes:
        env: name of the environment that the records get.
        calls: format of function calls in replies, a key of `CALL_FORMATS`.
        lowest: lowest return that is allowed.
        highest: highest return that is allowed; it solves a task.
        reward: return of the episodes whose source states none; None to mark them as unrated.
        score: name of the score or reward to read; "" for the usual or the only one of the source.
        thoughts: write recorded reasoning in `<think>` tags before the reply, instead of leaving it out.
    """

    env: str
    calls: str = "hermes"
    lowest: float = 0.0
    highest: float = 1.0
    reward: float | None = None
    score: str = ""
    thoughts: bool = False


@dataclass(slots=True)
class SourceEpisode:
    """Episode as its source states it; None for what it does not state.

    Attributes:
        number: number of the episode in the import, from 0.
        left_out: number of values by the name of their field that a record cannot hold.
    """

    messages: Sequence[SourceMessage]
    number: int = 0
    reward: float | None = None
    task: str | None = None
    category: str | None = None
    model: str | None = None
    started_at: datetime | None = None
    seconds: float | None = None
    stop: StopReason | None = None
    error: str = ""
    left_out: Counter[str] = field(default_factory=Counter)


def episode_record(source: SourceEpisode, settings: ImportSettings) -> EpisodeRecord:
    """Convert an episode to its record. Values that the source does not state are named in `unknown`.

    Raises:
        RefusedError: the conversation does not alternate, holds more than text, or its return is not allowed.
    """
    reward = settings.reward if source.reward is None else source.reward
    if reward is not None and not settings.lowest <= reward <= settings.highest:  # NaN is not either
        allowed = f"{settings.lowest:g}..{settings.highest:g}"
        raise RefusedError(f"reward outside of {allowed}", f"{reward}. Set --rewards to the range of the source")
    first = next((n for n, one in enumerate(source.messages) if one.role == "assistant" and one.sampled), None)
    if first is None:
        raise RefusedError("no reply of a model")
    stop = StopReason.ENV_ERROR if source.error else source.stop or StopReason.TERMINATED
    stop = StopReason.UNRATED if reward is None and stop.valid else stop
    prompt = [_plain(one, settings, source.left_out) for one in source.messages[:first]]
    task = source.task if source.task is not None else f"prompt {_checksum(prompt)}"
    episode = Episode(TaskItem(settings.env, task, {}, source.category or ""), 0, list(prompt), stop=stop)
    episode.prompt_length, episode.success_reward, episode.error = len(prompt), settings.highest, source.error
    _add_turns(episode, source, settings)
    episode.max_turns = len(episode.turns)
    _earn(episode, reward)
    known = {
        "reward": reward,
        "task": source.task,
        "category": source.category,
        "model": source.model,
        "started_at": source.started_at,
        "seconds": source.seconds,
        "stop": source.error or source.stop,
    }
    meta = EpisodeMeta(
        "collection", "", 0, task, source.number, source.started_at or UNKNOWN_TIME, source.seconds or 0.0,
        model=source.model or "",
    )  # fmt: skip
    record = to_record(episode, meta)
    record["unknown"] = sorted([*(name for name, value in known.items() if value is None), "data", "max_turns"])
    return record


def _add_turns(episode: Episode, source: SourceEpisode, settings: ImportSettings) -> None:
    agent = FunctionCalls(ToolFormat(), calls=settings.calls)
    left = list(source.messages[len(episode.messages) :])
    while left:
        reply, heard = left.pop(0), []
        if reply.role != "assistant":
            raise RefusedError("several messages after one reply", f"the last of the role {reply.role!r}")
        if not reply.sampled:
            raise RefusedError("a reply that no model wrote, after the first one of a model")
        while left and left[0].role == "tool":
            heard.append(left.pop(0))
        if not heard and left and left[0].role == "user":
            heard.append(left.pop(0))
        if not heard and left:
            raise RefusedError("a reply without an observation after it", f"but a message of the role {left[0].role!r}")
        calls = [call.call() for call in reply.tool_calls or ()]
        answers = _answers(reply, heard)
        steps: Sequence[StepResult | None] = (
            [StepResult(answer) for answer in answers] if answers else [None] * len(calls)
        )
        results = [CallResult(call, step, name=call.name) for call, step in zip(calls, steps, strict=True)]
        message = _plain(reply, settings, source.left_out)
        episode.messages.append(message)
        step = None
        if heard:
            step = joined(results) if heard[0].role == "tool" else StepResult(heard[0].texts()[0])
            told: Message = {"role": heard[0].role, "content": step.observation}
            episode.messages.append(agent.observe_calls(results, step, 0) if heard[0].role == "tool" else told)
        text = Reply(message["content"], tokens=reply.tokens, author=reply.author)
        several = tuple(results) if len(results) > 1 else ()
        episode.turns.append(Turn(text, calls[0] if calls else None, step, 0.0, 0.0, several))


def _answers(reply: SourceMessage, heard: Sequence[SourceMessage]) -> list[str]:
    """Return the answers to the calls of a reply, in the order of the calls; none where no tool answered."""
    told = [one for one in heard if one.role == "tool"]
    calls = [call.id for call in reply.tool_calls or ()]
    ids = [one.tool_call_id or "" for one in told]
    if told and len(told) != len(calls):
        raise RefusedError("calls without an answer of their own", f"{len(calls)} calls, {len(told)} answers")
    if all(ids) and all(calls) and len(set(calls)) == len(calls):
        if sorted(ids) != sorted(calls) and told:
            raise RefusedError("an answer to no call", f"{set(ids) - set(calls)}")
        told.sort(key=lambda one: calls.index(one.tool_call_id or ""))
    return [one.texts()[0] for one in told]


def _earn(episode: Episode, reward: float | None) -> None:
    """Let the last turn earn the return of the episode."""
    if reward is None:
        return
    last, over = episode.turns[-1], episode.stop is StopReason.TERMINATED
    step = replace(last.step or StepResult(""), reward=reward, terminated=over)
    calls = last.calls
    if calls and (answered := calls[-1].step) is not None:
        calls = (*calls[:-1], replace(calls[-1], step=replace(answered, reward=step.reward, terminated=over)))
    episode.turns[-1] = replace(last, step=step, calls=calls)


def _plain(message: SourceMessage, settings: ImportSettings, left_out: Counter[str]) -> Message:
    """Return a message with its function calls as text; count what it has besides."""
    text, thoughts = message.texts()
    written = [
        CALL_FORMATS[settings.calls].write(call.name, call.call().arguments) for call in message.tool_calls or ()
    ]
    text = with_calls(text, written)
    if thoughts and settings.thoughts:
        text = f"<think>\n{thoughts.strip()}\n</think>\n\n{text}"
    elif thoughts:
        left_out["reasoning"] += 1
    left_out.update(f"message.{name}" for name, value in (message.model_extra or {}).items() if value)
    return {"role": message.role, "content": text}


def _checksum(prompt: Sequence[Message]) -> str:
    return hashlib.sha256(json.dumps(prompt).encode()).hexdigest()[:12]


def number_or_none(value: Any) -> float | None:
    """Return a finite number; None for null.

    Raises:
        RefusedError: it is neither.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RefusedError("reward that is no finite number", f"{value!r:.100}")
    return float(value)
