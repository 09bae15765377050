"""OpenEnv: environments of a running server, by its WebSocket protocol. It does not need OpenEnv's package."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass
from typing_extensions import override

from env_adapters.openenv.schema import ActionForm
from env_adapters.openenv.wire import RefusedActionError, RemoteSession, action_schema
from env_adapters.seeded import SeededEnv
from verl_agent.envs.action_format import FenceFormat
from verl_agent.envs.base import Hosting, Requirement
from verl_agent.envs.http.transport import transport
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError, EnvError
from verl_agent.sections import STRICT, section
from verl_agent.types import Message, StepResult, TaskItem

MAX_TEXT = 12_000
"""Most characters of an observation."""


@dataclass(frozen=True, slots=True, config=STRICT)
class Options:
    """Types and bounds of the options that only this adapter has; `OpenEnv` explains them."""

    url: str
    name: Annotated[str, Field(min_length=1)]
    rules: str
    action: str | None
    observation: Sequence[str] | None
    reset: Mapping[str, Any] | None
    success_reward: float
    timeout_s: Annotated[float, Field(gt=0)]

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"env.options.url={self.url!r} is not allowed. Allowed: a URL such as http://localhost:8000."
            )


class OpenEnv(SeededEnv):
    """Session on a server of OpenEnv, whose rewards are summed. It ends when the server says `done`."""

    env = "openenv"
    action_format = FenceFormat()
    hosting = Hosting(threads=1, sessions=256, busy=256)  # sessions only wait

    def __init__(  # noqa: PLR0913 - one parameter for each way in which servers differ
        self,
        url: str,
        name: str = "openenv",
        rules: str = "",
        action: str | None = None,
        observation: Sequence[str] | None = None,
        reset: Mapping[str, Any] | None = None,
        train: int = 1000,
        test: int = 100,
        success_reward: float = 1.0,
        timeout_s: float = 60.0,
        allow_unseeded: bool = False,
    ) -> None:
        """Check the options without a request to the server.

        Args:
            url: base URL of the server, such as `http://localhost:8000`.
            name: name of the environment in task ids.
            rules: first message of an episode; the form of actions is added to it.
            action: field of an action that holds the text; null for the only one of the schema, or for a JSON object
                with all fields.
            observation: fields of an observation to show; null for all.
            reset: further arguments of `reset`, such as `{difficulty: easy}`.
            train: number of training tasks, which are seeds.
            test: number of held-out tasks.
            success_reward: return from which a task counts as solved.
            timeout_s: timeout of one call in seconds, > 0; `env.timeout_s` applies too.
            allow_unseeded: see `SeededEnv`.
        """
        given = {"url": url, "name": name, "rules": rules, "action": action, "observation": observation, "reset": reset}
        numbers = {"success_reward": success_reward, "timeout_s": timeout_s}
        section("env.options", Options, given | numbers)
        super().__init__(name, train, test, allow_unseeded)
        self.url, self.rules, self.timeout_s = url.rstrip("/"), rules, float(timeout_s)
        self.success_reward, self._field = float(success_reward), action
        self._shown, self._reset = observation, dict(reset or {})
        self._connection: RemoteSession | None = None

    @override
    @classmethod
    def requirements(cls) -> Sequence[Requirement]:
        return [Requirement.package("aiohttp", "pip install 'verl-agent[openenv]'", "WebSocket client")]

    @cached_property
    def form(self) -> ActionForm:
        """Form of the server's actions; the first use asks the server."""
        return ActionForm.of(action_schema(self.url), self._field)

    @property
    @override
    def probes(self) -> Sequence[str]:
        return self.form.samples()

    @override
    async def reset(self, item: TaskItem) -> list[Message]:
        """Open a session for the first task, and begin `item` with its seed.

        Without rules of its own, the prompt is the messages of the environment where the server sends them in the
        metadata, as `verl-agent serve` does.
        """
        if self._connection is None:
            self._connection = RemoteSession(self.url, self.timeout_s)
        form = self.form.described()
        data = await self._ask("reset", {"seed": item.data["seed"], **self._reset})
        self._ended = bool(data["done"])
        if self._ended:
            raise EnvError(f"{self.url}: the episode of {item.id!r} ends before the first action.")
        if not self.rules and (messages := (data.get("metadata") or {}).get("messages")):
            return [Message(role=one["role"], content=one["content"]) for one in messages]
        return [
            {"role": "system", "content": f"{self.rules}\n{form}".strip()},
            {"role": "user", "content": self._text(data)},
        ]

    @override
    async def step(self, action: str) -> StepResult:
        if self._ended:
            return StepResult("The episode has ended.", terminated=True)
        body = self.form.read(action)
        if body is None:
            return StepResult(f"That is no action. {self.form.described()}", info={"invalid_action": 1.0})
        try:
            data = await self._ask("step", body)
        except RefusedActionError as error:
            return StepResult(f"The action is not valid: {error}", info={"invalid_action": 1.0})
        self._ended = bool(data["done"])
        return StepResult(self._text(data), float(data.get("reward") or 0.0), self._ended)

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._connection is None:
            raise EnvError("step came before the first reset.")
        return await asyncio.wrap_future(transport().submit(self._connection.ask(kind, data)))

    def _text(self, data: Mapping[str, Any]) -> str:
        """Return an observation as text: a single field as it is, several as lines `name: value`."""
        fields = {key: value for key, value in data["observation"].items() if key != "metadata"}
        if self._shown is not None:
            if missing := [key for key in self._shown if key not in fields]:
                raise EnvError(
                    f"env.options.observation: the server's observation has no {missing[0]!r}, but {list(fields)}."
                )
            fields = {key: fields[key] for key in self._shown}
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in fields.items()}
        text = next(iter(texts.values())) if len(texts) == 1 else "\n".join(f"{k}: {v}" for k, v in texts.items())
        return shorten(text, MAX_TEXT) if text.strip() else "(nothing)"

    @override
    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.shield(asyncio.wrap_future(transport().submit(connection.close())))
