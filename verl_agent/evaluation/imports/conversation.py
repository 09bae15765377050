"""Conversation as another program recorded it, and its conversion to an episode record.

A record alternates: a prompt, then one reply and one observation in turn. A conversation that does not is refused.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from verl_agent.agents.functions import FunctionCalls
from verl_agent.envs.action_format import ToolFormat
from verl_agent.envs.call_formats import CALL_FORMATS
from verl_agent.envs.model_api.chat import MARKS, with_calls
from verl_agent.evaluation.imports.messages import SourceMessage
from verl_agent.evaluation.imports.values import Json, RefusedError, number_or_none
from verl_agent.rollout.actions import joined
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, to_record
from verl_agent.types import CallResult, Episode, Message, Reply, StepResult, StopReason, TaskItem, Turn

UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC)
THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
"""Thought at the start of a reply."""


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
        choices: names of its scores, if it has several and none was chosen; then it has no return.
        left_out: number of values by the name of their field that a record cannot hold.
    """

    messages: Sequence[SourceMessage]
    reward: float | None = None
    task: str | None = None
    category: str | None = None
    model: str | None = None
    started_at: datetime | None = None
    seconds: float | None = None
    stop: StopReason | None = None
    error: str = ""
    choices: tuple[str, ...] = ()
    left_out: Counter[str] = field(default_factory=Counter)

    def count(self, value: Json, known: Collection[str], prefix: str = "") -> None:
        """Count the values that a record cannot hold: all but null, empty and known ones."""
        self.left_out.update(f"{prefix}{name}" for name, one in value.items() if one and name not in known)

    def choose(self, scores: Json, name: str, usual: str = "") -> None:
        """Set the return to the score that the user named, else to the usual or the only one. Count the others.

        Raises:
            RefusedError: there are scores, but not the named one, or it is no number.
        """
        if name and scores and name not in scores:
            raise RefusedError(f"no score {name!r}", f"Set --score to one of: {', '.join(scores)}")
        name = name or (usual if usual in scores else next(iter(scores)) if len(scores) == 1 else "")
        self.choices = () if name in scores else tuple(scores)
        self.left_out.update(f"score.{one}" for one, value in scores.items() if one != name and value is not None)
        self.reward = number_or_none(scores.get(name))


def episode_record(source: SourceEpisode, settings: ImportSettings) -> EpisodeRecord:
    """Convert an episode to its record. Values that the source does not state are named in `unknown`.

    Raises:
        RefusedError: the conversation does not alternate, holds more than text, or its return is not allowed.
    """
    reward = settings.reward if source.reward is None and not source.choices else source.reward
    if source.error:
        source.count({"reward beside an error": source.reward is not None}, ())
        reward = None
    if reward is not None and not settings.lowest <= reward <= settings.highest:  # NaN is not either
        allowed = f"{settings.lowest:g}..{settings.highest:g}"
        raise RefusedError(f"reward outside of {allowed}", f"{reward}. Set --rewards to the range of the source")
    first = next((n for n, one in enumerate(source.messages) if one.role == "assistant" and one.sampled), None)
    if first is None:
        raise RefusedError("no reply of a model", source.error)
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
        "collection", "", 0, task, 0, source.started_at or UNKNOWN_TIME, source.seconds or 0.0,
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
        if not calls and not reply.texts()[0].strip():
            raise RefusedError("an empty reply", "it has neither text nor a call")
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
    if written:
        thought = THOUGHT.match(text)
        head, text = (thought[0] + "\n", text[thought.end() :].lstrip()) if thought else ("", text)
        left_out.update(f"{mark} in the text beside a call, written as &lt;{mark[1:]}" for mark in MARKS.findall(text))
        text = head + with_calls(text, written)
    if thoughts and settings.thoughts:
        text = f"<think>\n{thoughts.strip()}\n</think>\n\n{text}"
    elif thoughts:
        left_out["reasoning"] += 1
    extras = [extra for call in message.tool_calls or () for extra in (call.model_extra or {}).items()]
    left_out.update(f"call.{name}" for name, value in extras if value)
    left_out.update(f"message.{name}" for name, value in (message.model_extra or {}).items() if value)
    return {"role": message.role, "content": text}


def _checksum(prompt: Sequence[Message]) -> str:
    return hashlib.sha256(json.dumps(prompt).encode()).hexdigest()[:12]
