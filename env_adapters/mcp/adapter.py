"""MCP: the tools are those of servers, the tasks come from a file, and a check judges the final state."""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import override

from env_adapters.mcp.naming import NamedTool, name_tools
from env_adapters.mcp.places import FolderPlace, Place, SandboxPlace, ServerSpec
from env_adapters.mcp.tasks import read_tasks
from env_adapters.terminal.adapter import PROGRAM_LIMITS, check_runtime
from env_adapters.terminal.runtimes import RUNTIMES, make_runtime, read_limits
from verl_agent.envs.action_format import ActionFormat, ToolFormat
from verl_agent.envs.base import EnvAdapter, Hosting, Requirement
from verl_agent.envs.call_error import CallError
from verl_agent.envs.options import Positive, checked_options
from verl_agent.envs.program.harness import absolute_command, check_environment, clean_environment
from verl_agent.envs.tool_check import check_action
from verl_agent.envs.tools import Tool, arguments
from verl_agent.errors import ConfigError, EnvError, did_you_mean
from verl_agent.sections import section
from verl_agent.types import DemoAction, Message, StepResult, TaskItem, ToolCall

ANSWER = {"answer": {"type": "string", "description": "answer, if the task asks for one"}}
FINISH = Tool("finish", "End the task.", {**arguments(**ANSWER), "required": []})
IMAGE = "python:3.11-slim"
"""Image of containers."""
PYTHON = "{python}"
"""First part of a command that stands for this Python, which has the package mcp."""
CHECK_S = 30.0
"""Seconds of one check."""
LISTED: dict[str, str] = {}
"""Tools of the servers that this process has started to list them, by the options of the environment."""


class Mcp(EnvAdapter):
    """Tools of MCP servers, which are started for each session in a folder of its own."""

    hosting = Hosting(sessions=64, busy=16, memory_mb=16384)

    @checked_options
    def __init__(  # noqa: PLR0913 - one for each option
        self,
        servers: Mapping[str, Any],
        tasks: str,
        check: str = "",
        reward: str = "",
        instructions: str = "Use the functions to do the task. Call finish when it is done.",
        tools: Sequence[str] | None = None,
        sandbox: str = "",
        limits: Mapping[str, Any] | None = None,
        environment: Sequence[str] = (),
        call_s: Positive = 30.0,
        start_s: Positive = 60.0,
        output_chars: Annotated[int, Field(ge=100)] = 4000,
        deterministic: bool = False,
    ) -> None:
        """Check the options. No server is started.

        Args:
            servers: by name, `command` (a list, in which `{python}` is this Python and `{folder}` the folder of the
                session) or `url`, and perhaps `prefix`, a text before the names of its tools.
            tasks: JSONL file with one task a line: `id`, `prompt`, and perhaps `split`, `category`, `files` (texts by
                name), `check`, `data` and `solution` (a list of calls, for the oracle).
            check: shell command that runs in the folder at the end; the exit status 0 earns 1, any other 0. It reads
                the task with the `answer` of `finish` as JSON from its standard input.
            reward: `MODULE:FUNCTION` in place of a check. It gets the task, the folder and the answer, and returns the
                reward.
            instructions: first message; "" for none.
            tools: names of the tools that the model may call, without prefix; null for all.
            sandbox: "" for this machine, or the terminal's `bubblewrap`, `docker` or `podman`, without a network.
            limits: limits of the sandbox, see the environment `terminal`.
            environment: variables of the servers beside a few common ones: `NAME` with its value here, or `NAME=value`.
            call_s: seconds of one call, > 0.
            start_s: seconds in which all servers must have started, > 0.
            output_chars: characters of a result that the model reads, >= 100.
            deterministic: see `EnvAdapter`.
        """
        self._tools, self._instructions, self._check, self._file = tools, instructions, check, tasks
        self._call_s, self._start_s, self._output_chars = call_s, start_s, output_chars
        if not isinstance(servers, Mapping) or not servers:
            raise ConfigError("env.options.servers is empty. Allowed: servers by name, each with a command or a url.")
        self._specs = {name: read_server(name, value) for name, value in servers.items()}
        self._environment, file = check_environment(environment, ()), Path(tasks).expanduser().resolve()
        if not file.is_file():
            raise ConfigError(f"env.options.tasks={tasks!r} is not a file. Allowed: a file of JSON lines.")
        if sandbox and sandbox not in RUNTIMES:
            raise ConfigError(f"env.options.sandbox={sandbox!r} is not allowed. {did_you_mean(sandbox, RUNTIMES)}")
        self._runtime = make_runtime(sandbox, IMAGE) if sandbox else None
        self._limits = read_limits(limits or {}, PROGRAM_LIMITS)
        if check and reward:
            raise ConfigError("env.options has both check and reward. Set one of them.")
        self._score = _function(reward) if reward else None
        state, judge = file.stat(), "reward" if reward else "check" if check else ""
        self._tasks = read_tasks(file, judge, (state.st_mtime_ns, state.st_size))
        self.splits, self.deterministic = tuple(self._tasks), deterministic
        self._place: Place | None = None
        self._servers: Any = None
        self._current: Mapping[str, Any] = {}

    @override
    @classmethod
    def requirements(cls) -> Sequence[Requirement]:
        return [Requirement.package("mcp", "pip install 'verl-agent[mcp]'", "client of MCP")]

    @override
    def tasks(self, split: str) -> Sequence[TaskItem]:
        """Return the tasks of the file."""
        self.check_split(split)
        return self._tasks[split]

    @cached_property
    def action_format(self) -> ActionFormat:  # type: ignore[override]  # first use starts the servers
        """Calls of the tools; the first use outside of a session starts the servers once to list them."""
        return ToolFormat((*(one.tool for one in self._listed), FINISH))

    @cached_property
    def _listed(self) -> list[NamedTool]:
        """Tools of the servers that the model may call."""
        return self._name(json.loads(_list_once(json.dumps(self._arguments))))

    def _name(self, found: Sequence[tuple[int, Mapping[str, Any]]]) -> list[NamedTool]:
        return name_tools(self._specs, found, self._tools, FINISH)

    async def _list(self) -> str:
        """Return the tools of the servers, which are started for it.

        Raises:
            ConfigError: a server does not start or does not list its tools, before there is an episode to end.
        """
        try:
            remedy = f"Correct its command or url, or set env.options.start_s={self._start_s:g} higher."
            return json.dumps(await self._start({}, remedy))
        except EnvError as error:
            raise ConfigError(f"env.options.servers: {error}") from error
        finally:
            await self.close()

    @override
    async def reset(self, item: TaskItem) -> list[Message]:
        """Start the servers in a folder with the files of the task."""
        self._current = {"id": item.id, **item.data}
        found = await self._start(item.data.get("files", {}))
        self.__dict__["_listed"] = self._name(found)
        self.__dict__.pop("action_format", None)
        first: list[Message] = [{"role": "system", "content": text}] if (text := self._instructions) else []
        return [*first, {"role": "user", "content": str(item.data["prompt"])}]

    async def _start(self, files: Mapping[str, str], remedy: str = "") -> list[tuple[int, dict[str, Any]]]:
        """Start the servers and return the descriptions of their tools; an error of them has the remedy."""
        from env_adapters.mcp.servers import Servers  # needs the package mcp

        await self.close()
        commands = [spec.command for spec in self._specs.values() if spec.command]
        variables = clean_environment(str(Path.home()), self._environment, {})
        if self._runtime is None or not commands:
            self._place = FolderPlace(files, variables)
        else:
            check_runtime(self._runtime.name)
            names = {entry.partition("=")[0] for entry in self._environment}
            listed = {name: value for name, value in variables.items() if name in names}
            self._place = SandboxPlace(files, listed, commands, self._runtime, self._limits)
        self._servers = servers = Servers(self._specs, self._place, self._call_s, self._output_chars, remedy)
        await servers.start(self._start_s)
        return await servers.tools(self._start_s)

    @override
    async def step(self, action: Any) -> StepResult:
        """Check a call and let its server carry it out; `finish` runs the check."""
        if self._servers is None:
            return StepResult("The task has ended.", terminated=True)
        checked = check_action(self.action_format.tools, action)
        if isinstance(checked, CallError):
            return checked.step
        if checked.tool is FINISH:
            return await self._finish(str(checked.call.arguments.get("answer", "")))
        known = next(one for one in self._listed if one.tool is checked.tool)
        step = await self._servers.call(known.server, ToolCall(known.name, checked.call.arguments))
        return StepResult(step.observation, info={**step.info, **checked.info, **self._servers.stray_output()})

    async def _finish(self, answer: str) -> StepResult:
        """End the servers and judge what they have left."""
        assert self._servers is not None and self._place is not None  # reset set them
        await self._servers.end()
        info = self._servers.stray_output()
        try:
            if self._score is not None:
                reward = self._score(self._current, self._place.state(), answer)
                return StepResult(f"The reward is {float(reward):g}.", reward, terminated=True, info=info)
            check = self._current.get("check") or self._check
            task = json.dumps({**self._current, "answer": answer}).encode()
            passed = self._place.passes(check, task, CHECK_S)
        finally:
            await self.close()
        if passed is None:
            return StepResult("The check took too long.", terminated=True, info={"check_failed": 1.0, **info})
        return StepResult(f"The check {'passes' if passed else 'does not pass'}.", float(passed), True, info=info)

    @override
    async def close(self) -> None:
        servers, self._servers = self._servers, None
        place, self._place = self._place, None
        if servers is not None:
            await servers.end()
        if place is not None:
            place.close()

    @override
    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        """Return the solution of a task, and `finish`.

        Raises:
            NotImplementedError: the task has no solution.
            ConfigError: the tools are known, and a call would be refused.
        """
        if not (solution := item.data.get("solution")):
            raise NotImplementedError(f"the task {item.id} has no solution.")
        calls = [ToolCall(one["name"], one["arguments"]) for one in solution]
        if "_listed" in self.__dict__ or json.dumps(self._arguments) in LISTED:  # a report starts no server to read it
            calls = [self._checked(item, number, call) for number, call in enumerate(calls, start=1)]
        ends = [] if calls[-1].name == FINISH.name else [ToolCall(FINISH.name, {"answer": ""})]
        return [DemoAction(call) for call in [*calls, *ends]]

    def _checked(self, item: TaskItem, number: int, call: ToolCall) -> ToolCall:
        """Return a call of a solution as its tool takes it."""
        checked = check_action(self.action_format.tools, call)
        if isinstance(checked, CallError):
            raise ConfigError(
                f"env.options.tasks={self._file!r}: call {number} of the solution of the task {item.id!r} is not "
                f"allowed. Correct it: {checked.text}"
            )
        return checked.call

    @override
    def oracle_turns(self, item: TaskItem) -> int | None:
        solution: Sequence[Mapping[str, Any]] = item.data.get("solution") or ()
        return len(solution) + (solution[-1]["name"] != FINISH.name) if solution else None


def read_server(name: str, value: Any) -> ServerSpec:
    """Return a server of `env.options.servers`, whose command has absolute paths.

    Raises:
        ConfigError: it is neither a command of this machine nor a URL.
    """
    spec = section(f"env.options.servers.{name}", ServerSpec, value)
    if bool(spec.command) == bool(spec.url):
        raise ConfigError(f"env.options.servers.{name} needs either a command or a url. Set one of them.")
    if spec.url:
        return spec
    command = [spec.command[0].replace(PYTHON, sys.executable), *spec.command[1:]]
    return replace(spec, command=absolute_command(command, f"env.options.servers.{name}.command"))


def _function(name: str) -> Callable[[Mapping[str, Any], Path, str], Any]:
    try:
        found = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"env.options.reward={name!r} cannot be imported: {error}. Write MODULE:FUNCTION.") from error
    if not callable(found):
        raise ConfigError(f"env.options.reward={name!r} is not a function. Write MODULE:FUNCTION.")
    return found  # type: ignore[no-any-return]  # it is the user's


def _list_once(options: str) -> str:
    """Return the tools of the servers, which are started for it; once a process."""
    if options not in LISTED:
        args, named = json.loads(options)
        with ThreadPoolExecutor(1) as thread:  # the caller may have an event loop
            LISTED[options] = thread.submit(asyncio.run, Mcp(*args, **named)._list()).result()
    return LISTED[options]
