"""Environment `http`: sessions on servers of `verl-agent serve` or of AgentGym."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import Any, TypeVar
from urllib.parse import quote

from verl_agent.envs.action_format import ActionFormat, action_format_from_json
from verl_agent.envs.base import EnvAdapter, Hosting, Requirement
from verl_agent.envs.http.agentgym import DIALECTS, AgentGymLanguage
from verl_agent.envs.http.protocols import OwnLanguage, ServerProtocol, number, pick
from verl_agent.envs.http.server_pool import ask_all, server_pool
from verl_agent.envs.http.settings import OWN, HttpSettings
from verl_agent.envs.http.transport import UnreachableError, transport
from verl_agent.errors import ConfigError, EnvError
from verl_agent.types import Message, StepResult, TaskItem

T = TypeVar("T")
CLOSE_TIMEOUT_S = 10.0
INFO_TIMEOUT_S = 30.0


class HttpEnv(EnvAdapter):
    """Environment whose sessions and tasks are on one or several servers. See README.md."""

    hosting = Hosting(threads=1, sessions=512, busy=512)  # sessions only wait, and share their connections

    def __init__(
        self,
        env: str,
        urls: Sequence[str] | str,
        protocol: str = OWN,
        items: Mapping[str, str] | None = None,
        instructions: str | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        """Store the options; no server is asked.

        Args:
            env: environment of the servers, such as `textcraft`.
            urls: base URLs of servers that offer the same tasks, such as `http://node7:8000`.
            protocol: `verl-agent` for servers of `verl-agent serve`, `agentgym` for AgentGym's own.
            items: for `agentgym`: the numbers of the items of each split, such as `{train: 0-373, test: 374-473}`.
            instructions: for `agentgym`: system message of the episode; null for the default one of `env`.
            timeout_s: most seconds of one call; `env.timeout_s` limits it too.
        """
        self.settings = HttpSettings.of(env, urls, protocol, items, instructions, timeout_s)
        self.protocol = protocol_of(self.settings)
        self._url = ""
        self._session: Any = None
        self._score = 0.0

    @classmethod
    def requirements(cls) -> Sequence[Requirement]:
        """Return the HTTP client."""
        return [Requirement.package("aiohttp", "pip install 'verl-agent[http]'", "HTTP client")]

    @cached_property
    def splits(self) -> Sequence[str]:  # type: ignore[override]  # asks the servers on first use
        """Splits that the servers offer."""
        if self.settings.protocol != OWN:
            return tuple(split for split, _ in self.settings.items)
        return tuple(pick(ask_servers(self.settings), "splits"))

    @cached_property
    def success_reward(self) -> float:  # type: ignore[override]  # asks the servers on first use
        """Success threshold of the servers' environment."""
        return number(ask_servers(self.settings), "success_reward") if self.settings.protocol == OWN else 1.0

    @cached_property
    def action_format(self) -> ActionFormat:  # type: ignore[override]  # asks the servers on first use
        """Action format of the servers' environment."""
        if self.settings.protocol != OWN:
            return DIALECTS[self.settings.env].action_format
        try:
            return action_format_from_json(pick(ask_servers(self.settings), "form"))
        except EnvError as error:
            raise ConfigError(f"env.options.urls: {error} Serve the same version as this one.") from error

    def tasks(self, split: str) -> Sequence[TaskItem]:
        """Return the items of `split`: by name from `verl-agent serve`, by number from AgentGym's servers."""
        if self.settings.protocol == OWN:
            ask_servers(self.settings)  # refuses servers that offer different tasks
        return list_tasks(self.settings, split)

    async def reset(self, item: TaskItem) -> list[Message]:
        """Begin `item`; the first reset opens a session on a server."""
        return await _in_transport_loop(self._reset(item.id))

    async def step(self, action: str) -> StepResult:
        """Send the action, exactly once: the server may have carried it out even if its answer was lost."""
        if self._session is None:
            raise EnvError("step came before the first reset.")
        valid = action.encode(errors="replace").decode()  # JSON of a lone surrogate is refused by servers
        answer = await _in_transport_loop(self._post("/step", self.protocol.act(valid)))
        result, self._score = self.protocol.read_step(answer, self._score)
        return result

    async def close(self) -> None:
        """Close the session on its server; a session that has ended is ignored."""
        if self._session is not None:
            closing = transport().submit(self._close())
            await asyncio.shield(asyncio.wrap_future(closing))  # it completes even if the caller is cancelled

    async def _reset(self, item: str) -> list[Message]:
        protocol = self.protocol
        if self._session is None:
            servers = server_pool(self.settings.urls)
            self._url, answer = await servers.create("/create", protocol.create, self.settings.timeout_s)
            try:
                self._session = protocol.read_session(answer)
            except EnvError:
                servers.leave(self._url)
                raise
        self._score = 0.0
        answer, observation = await self._post("/reset", protocol.begin(item)), None
        if protocol.asks_observation:
            url = f"{self._url}/observation?{protocol.session}={quote(str(self._session))}"
            observation = await transport().request("GET", url, timeout_s=self.settings.timeout_s)
        return protocol.read_prompt(answer, observation)

    async def _post(self, path: str, body: dict[str, Any], timeout_s: float | None = None) -> Any:
        body[self.protocol.session] = self._session
        return await transport().request("POST", self._url + path, body, timeout_s or self.settings.timeout_s)

    async def _close(self) -> None:
        try:
            with suppress(EnvError):  # the server closes idle sessions itself
                try:
                    await self._post("/close", {}, CLOSE_TIMEOUT_S)
                except UnreachableError:
                    await self._post("/close", {}, CLOSE_TIMEOUT_S)
        finally:
            server_pool(self.settings.urls).leave(self._url)
            self._session = None


@cache
def list_tasks(settings: HttpSettings, split: str) -> tuple[TaskItem, ...]:
    """Return the tasks of one split."""
    if settings.protocol != OWN:
        return tuple(TaskItem(settings.env, f"{settings.env}_{index}") for index in dict(settings.items)[split])
    listed = _ask(settings, f"/tasks?split={quote(split)}")
    first = next(iter(listed.values()))
    return tuple(TaskItem(settings.env, task["id"], {}, task["category"]) for task in first)


@cache
def ask_servers(settings: HttpSettings) -> Mapping[str, Any]:
    """Return the description of the environment that the servers offer; unreachable servers are ignored.

    Raises:
        ConfigError: no server answers, or the servers offer different tasks.
    """
    answers = _ask(settings, "/info")
    first = next(iter(answers))
    for url, info in answers.items():
        if pick(info, "env") != settings.env:
            raise ConfigError(f"env.options.env={settings.env!r}, but {url} serves {info['env']!r}.")
        if pick(info, "digest") != answers[first]["digest"]:
            raise ConfigError(f"{first} and {url} offer different tasks. Serve the same version with the same options.")
    info = answers[first]
    assert isinstance(info, Mapping)  # pick() has read it
    return info


def protocol_of(settings: HttpSettings) -> ServerProtocol:
    """Return the protocol of the servers."""
    if settings.protocol == OWN:
        return OwnLanguage()
    return AgentGymLanguage(settings.env, settings.instructions)


def _ask(settings: HttpSettings, path: str) -> dict[str, Any]:
    try:
        return transport().submit(ask_all(settings.urls, path, INFO_TIMEOUT_S)).result()
    except EnvError as error:
        raise ConfigError(
            f"env.options.urls: {error}. Start a server with: verl-agent serve {settings.env} "
            "(for AgentGym's own servers set env.options.protocol=agentgym)."
        ) from error


async def _in_transport_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in the event loop of all requests; cancelling the caller cancels it."""
    return await asyncio.wrap_future(transport().submit(work))
