"""OpenEnv: environments of a running server. A task is a seed. It does not need OpenEnv's package."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from typing_extensions import override

from env_adapters.openenv.schema import ActionForm, is_mcp
from env_adapters.seeded import Count, Name, SeededEnv
from verl_agent.envs.action_format import ActionFormat, FenceFormat, ToolFormat
from verl_agent.envs.base import Hosting, Requirement
from verl_agent.envs.http.client import in_transport_loop
from verl_agent.envs.http.connection import OTHER, Connection, RefusedActionError
from verl_agent.envs.http.transport import transport
from verl_agent.envs.options import Positive, checked_options
from verl_agent.envs.parsing import shorten
from verl_agent.envs.schemas import JsonSchema
from verl_agent.envs.tools import Tool
from verl_agent.errors import ConfigError, EnvCrashError, EnvError
from verl_agent.types import Message, StepResult, TaskItem

MAX_TEXT = 12_000
"""Most characters of an observation."""
INFO_TIMEOUT_S = 30.0


class OpenEnv(SeededEnv):
    """Session on a server of OpenEnv, whose rewards are summed. It ends when the server says `done`."""

    env = "openenv"
    hosting = Hosting(threads=1, sessions=256, busy=256)  # sessions only wait

    @checked_options
    def __init__(  # noqa: PLR0913 - one parameter for each way in which servers differ
        self,
        url: str,
        name: Name = "openenv",
        rules: str = "",
        action: str | None = None,
        observation: Sequence[str] | None = None,
        reset: Mapping[str, Any] | None = None,
        train: Count = 1000,
        test: Count = 100,
        success_reward: float = 1.0,
        timeout_s: Positive = 60.0,
        allow_unseeded: bool = False,
        null_reward: float | None = None,
    ) -> None:
        """Check the options without a request to the server.

        Args:
            url: base URL of the server, such as `http://localhost:8000`.
            name: name of the environment in task ids.
            rules: first message of an episode, empty for the server's description of the environment; the form of
                actions is added to it.
            action: field of an action that holds the text; null for the only one of the schema, or for a JSON object
                with all fields.
            observation: fields of an observation to show; null for all.
            reset: further arguments of `reset`, such as `{difficulty: easy}`.
            train: number of training tasks, which are seeds.
            test: number of held-out tasks.
            success_reward: return from which a task counts as solved.
            timeout_s: timeout of one call in seconds, > 0; `env.timeout_s` applies too.
            allow_unseeded: see `SeededEnv`.
            null_reward: reward of a step to which the server gives none; null to end the episode with an error where
                the missing reward may be NaN, which OpenEnv's servers send as null, too.
        """
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"env.options.url={url!r} is not allowed. Allowed: a URL such as http://localhost:8000.")
        super().__init__(name, train, test, allow_unseeded)
        self.url, self.rules, self.timeout_s = url.rstrip("/"), rules, float(timeout_s)
        self.success_reward, self._field = float(success_reward), action
        self._shown, self._reset, self._null_reward = observation, dict(reset or {}), null_reward
        self._connection: Connection | None = None
        self._ended, self._carried, self._rewarded = False, 0.0, False

    @override
    @classmethod
    def requirements(cls) -> Sequence[Requirement]:
        return [Requirement.package("aiohttp", "pip install 'verl-agent[openenv]'", "WebSocket client")]

    @cached_property
    def form(self) -> ActionForm:
        """Form of the server's actions; the first use asks the server."""
        schema = action_schema(self.url)
        if self._field is None and is_mcp(schema):
            return ActionForm(JsonSchema(schema), tools=mcp_tools(self.url, self.timeout_s))
        return ActionForm.of(schema, self._field)

    @cached_property
    def action_format(self) -> ActionFormat:  # type: ignore[override]  # first use asks the server
        """Calls of functions for a server of MCP; any other action is a text."""
        return ToolFormat(self.form.tools) if self.form.tools else FenceFormat()

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
            self._connection = Connection(self.url, self.timeout_s)
        form, rules = self.form.described(), self.rules or described(self.url)
        data = await self._ask("reset", {"seed": item.data["seed"], **self._reset})
        self._ended, self._carried, self._rewarded = bool(data["done"]), 0.0, False
        if self._ended:
            raise EnvError(f"{self.url}: the episode of {item.id!r} ends before the first action.")
        self._carried = 0.0 if data.get("reward") is None else data["reward"]
        if not self.rules and (messages := _messages(data["observation"].get("metadata"))):
            return messages
        system = f"{rules}\n{form}".strip()
        first: list[Message] = [{"role": "system", "content": system}] if system else []
        return [*first, {"role": "user", "content": self._text(data)}]

    @override
    async def step(self, action: Any) -> StepResult:
        if self._ended:
            return StepResult("The episode has ended.", terminated=True)
        body, invalid = self.form.read(action), {"invalid_action": 1.0}
        carried, self._carried = self._carried, 0.0
        if body is None:
            wrong = "That is no call of a function." if self.form.tools else "That is no action."
            return StepResult(f"{wrong} {self.form.described()}".strip(), carried, info=invalid)
        try:
            data = await self._ask("step", body)
        except RefusedActionError as error:
            return StepResult(f"The action is not valid: {error}", carried, info=invalid)
        self._ended = bool(data["done"])
        info = invalid if data["observation"].get("error") and self.form.tools else {}
        reward = self._reward(data)
        return StepResult(self._text(data), reward + carried if carried else reward, data["done"], info)

    def _reward(self, data: Mapping[str, Any]) -> Any:
        """Return the reward of a step.

        Raises:
            EnvError: it is missing where it may be NaN: at the end of an episode, or after other rewards of it.
        """
        reward = data.get("reward")
        self._rewarded = self._rewarded or reward is not None
        if reward is not None or self._null_reward is not None:
            return self._null_reward if reward is None else reward
        if self._rewarded or (data["done"] and not self.form.tools):
            raise EnvError(
                f"{self.url}: the reward of a step is null, after other rewards or at the end. OpenEnv's servers send "
                "null for NaN, too. If the environment gives none on purpose, set env.options.null_reward=0."
            )
        return 0.0

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._connection is None:
            raise EnvError("step came before the first reset.")
        return await in_transport_loop(self._connection.ask(kind, data))

    def _text(self, data: Mapping[str, Any]) -> str:
        """Return an observation as text: a single field as it is, several as lines `name: value`.

        An observation without fields has its text in the metadata, such as the first one of an MCP environment.
        """
        observation = data["observation"]
        fields = {key: value for key, value in observation.items() if key != "metadata"}
        if self._shown is not None:
            if missing := [key for key in self._shown if key not in fields]:
                raise EnvError(
                    f"env.options.observation: the server's observation has no {missing[0]!r}, but {list(fields)}."
                )
            fields = {key: fields[key] for key in self._shown}
        elif "tool_name" in fields:
            fields = {"result": tool_text(fields.get("result"), fields.get("error"))}
        elif not fields and isinstance(metadata := observation.get("metadata"), Mapping):
            fields = dict(metadata)
        texts = {
            key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for key, value in fields.items()
        }
        text = next(iter(texts.values())) if len(texts) == 1 else "\n".join(f"{k}: {v}" for k, v in texts.items())
        return shorten(text, MAX_TEXT) if text.strip() else "(nothing)"

    @override
    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.shield(asyncio.wrap_future(transport().submit(connection.close())))


def tool_text(result: Any, error: Any) -> str:
    """Return the result of a function of MCP as text, or its error."""
    if error:
        message = error.get("message") if isinstance(error, Mapping) else error
        return f"The call failed: {message}"
    if isinstance(result, Mapping) and "content" in result:  # the form of FastMCP
        if result.get("data") is not None:
            result = result["data"]
        else:
            result = "\n".join(str(one.get("text", one)) for one in result["content"] if isinstance(one, Mapping))
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _messages(metadata: Any) -> list[Message]:
    """Return the messages in the metadata of a server of this package; none of another one."""
    given = metadata.get("messages") if isinstance(metadata, Mapping) else None
    if not isinstance(given, list) or not all(isinstance(one, Mapping) and "content" in one for one in given):
        return []
    return [Message(role=one.get("role", "user"), content=one["content"]) for one in given]


def _fetch(url: str, path: str) -> Any:
    return transport().submit(transport().request("GET", url + path, timeout_s=INFO_TIMEOUT_S)).result()


@cache
def described(url: str) -> str:
    """Return the description of the server's environment, empty if it has none."""
    try:
        answer = _fetch(url, "/metadata")
    except EnvError:
        return ""
    text = answer.get("description") if isinstance(answer, Mapping) else None
    return shorten(text, MAX_TEXT) if isinstance(text, str) else ""


@cache
def mcp_tools(url: str, timeout_s: float) -> tuple[Tool, ...]:
    """Return the functions of an MCP server, which a session of its own lists.

    Raises:
        ConfigError: it lists none, or one whose schema is not allowed.
        EnvError: the server has no session left, or does not answer.
    """

    async def ask() -> Any:
        connection = Connection(url, timeout_s)
        try:
            return (await connection.ask("step", {"type": "list_tools"}))["observation"].get("tools")
        except (RefusedActionError, EnvCrashError) as error:
            return error
        finally:
            await connection.close()

    listed = transport().submit(ask()).result()
    if not isinstance(listed, list) or not listed:
        raise ConfigError(
            f"env.options.url={url!r}: the server's actions have no fields, and it lists no tools "
            f"({shorten(str(listed))}). It cannot be played. Serve an environment with actions or with tools of MCP."
        )
    return tuple(map(Tool.from_schema, listed))


@cache
def action_schema(url: str) -> Mapping[str, Any]:
    """Return the JSON schema of the server's actions.

    Raises:
        ConfigError: no server answers, or it speaks another protocol.
    """
    try:
        answer = _fetch(url, "/schema")
    except EnvError as error:
        raise ConfigError(
            f"env.options.url={url!r} is not a server of OpenEnv: {error}. {OTHER} Start the server, "
            "or correct the URL."
        ) from error
    schema = answer.get("action") if isinstance(answer, Mapping) else None
    if not isinstance(schema, Mapping) or not isinstance(schema.get("properties"), Mapping):
        raise ConfigError(
            f"env.options.url={url!r}: /schema describes no action ({shorten(str(answer))}). {OTHER} Serve with it."
        )
    return schema
