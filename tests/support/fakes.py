"""Fakes: a scripted policy, a scripted engine, and an environment that fails on demand."""

import asyncio
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from verl_agent.agents.base import Agent
from verl_agent.agents.context import Context
from verl_agent.agents.plain import Raw, ReAct
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.base import EnvAdapter
from verl_agent.types import Message, Reply, StepResult, TaskItem

ITEM = TaskItem("talk", "1")


def plain(context: Context | None = None) -> Agent:
    """Return an agent that adds nothing to the prompt; the whole reply is the action."""
    return Raw(LineFormat(), context)


def words_of(env: EnvAdapter, item: TaskItem) -> list[str]:
    """Return the replies of an oracle, rendered by the ReAct agent."""
    moves = env.demonstration(item)
    return [ReAct(env.action_format).render_demo(moves, turn) for turn in range(len(moves))]


class ScriptedPolicy:
    """Policy that gives scripted replies in order; exceptions in the script are raised."""

    def __init__(self, script: Iterable[str | Reply | Exception]) -> None:
        self._script = iter(script)
        self.heard: list[list[Message]] = []

    async def reply(self, messages: Sequence[Message]) -> Reply:
        self.heard.append(list(messages))
        line = next(self._script, None)
        assert line is not None, f"the script has {len(self.heard) - 1} replies and another one was asked for"
        if isinstance(line, Exception):
            raise line
        return line if isinstance(line, Reply) else Reply(line, tokens=len(line.split()))


class Talk(EnvAdapter):
    """Environment that answers `heard <n>`, and ends at the `turns`-th action with reward 1."""

    made: ClassVar[list["Talk"]]
    """Instances of this class, oldest first; `talk_class()` returns a class with its own list."""

    def __init__(self, turns: int = 100, fault: str = "", where: str = "step", seconds: float = 30.0) -> None:
        type(self).made.append(self)
        self.turns, self.fault, self.where, self.seconds = turns, fault, where, seconds
        self.heard = self.resets = self.closed = 0
        self.threads = {threading.current_thread().name}

    @classmethod
    def played(cls) -> list["Talk"]:
        """Return the instances that began or closed an episode."""
        return [env for env in cls.made if env.resets or env.closed]

    def new_session(self) -> Self:
        """Return a fresh instance, or carry out the fault."""
        if self.where == "new_session" and self.fault == "raise":
            raise ValueError("no display")
        if self.where == "new_session" and self.fault == "block":
            time.sleep(self.seconds)
        return super().new_session()

    def tasks(self, split: str) -> Sequence[TaskItem]:
        return [ITEM]

    async def reset(self, item: TaskItem) -> list[Message]:
        self.resets += 1
        await self._call("reset")
        return [{"role": "system", "content": "Talk."}, {"role": "user", "content": "Begin."}]

    async def step(self, action: str) -> StepResult:
        self.heard += 1
        await self._call("step")
        done = self.heard == self.turns
        return StepResult(f"heard {self.heard}", reward=float(done), terminated=done, info={"words": 1.0})

    async def close(self) -> None:
        self.closed += 1
        await self._call("close")

    async def _call(self, name: str) -> None:
        self.threads.add(threading.current_thread().name)
        if name != self.where:
            return
        if self.fault == "raise":
            raise KeyError("observation")
        if self.fault == "hang":
            await asyncio.sleep(self.seconds)
        if self.fault == "block":
            time.sleep(self.seconds)


def talk_class() -> type[Talk]:
    """Return a subclass of `Talk` with an empty list of instances."""
    return type("Talk", (Talk,), {"made": []})


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """The fields of verl's `TokenOutput` that this package reads."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str = "completed"
    extra_fields: Mapping[str, Any] = field(default_factory=dict)


class ScriptedEngine:
    """A `TokenEngine` that writes given texts as real token ids, and stops as an engine does.

    Every text is written character by character as far as the tokenizer allows: ids that decode to the
    text and that its own `encode` would not give. A reply longer than `max_tokens` is truncated there.
    """

    def __init__(
        self,
        tokenizer: Any,
        replies: Iterable[str | Sequence[int]],
        log_probs: bool = True,
        steps: Sequence[int | None] = (7,),
        held: int | None = None,
    ) -> None:
        self.tokenizer, self.steps, self.held = tokenizer, steps, held
        self._replies, self._log_probs = iter(replies), log_probs
        self.prompts: list[list[int]] = []
        self.written: list[list[int]] = []
        self.log_probs: list[list[float]] = []
        self.sampling: list[dict[str, Any]] = []
        self.requests: list[str] = []

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> EngineOutput:
        line = next(self._replies)
        ids = [*split_ids(self.tokenizer, line), self.tokenizer.eos_token_id] if isinstance(line, str) else list(line)
        ids, reason = ids[: sampling_params["max_tokens"]], "completed"
        if self.held is not None and len(prompt_ids) + len(ids) > self.held:
            ids, reason = ids[: self.held - len(prompt_ids)], "length"
        log_probs = [-(1 + place) / 128 - len(self.prompts) for place in range(len(ids))]
        self.requests.append(request_id)
        self.prompts.append(prompt_ids)
        self.sampling.append(sampling_params)
        self.written.append(ids)
        self.log_probs.append(log_probs)
        step = self.steps[min(len(self.prompts), len(self.steps)) - 1]
        extra: dict[str, Any] = {"global_steps": step}
        if sampling_params.get("logprobs"):
            pairs = zip(ids, log_probs, strict=True)
            extra["top_log_probs"] = [[(token, value), (0, value - 1)] for token, value in pairs]
        return EngineOutput(ids, log_probs if self._log_probs else None, reason, extra)


def split_ids(tokenizer: Any, text: str) -> list[int]:
    """Return ids that decode to `text`, one character at a time: the longest encoding."""
    return [token for character in text for token in tokenizer.encode(character, add_special_tokens=False)]
