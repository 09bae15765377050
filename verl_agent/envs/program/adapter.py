"""Environment `program`: a program of any kind plays the tasks with its own agent loop, and the policy answers it.

The program finds an endpoint for OpenAI's clients in OPENAI_BASE_URL and OPENAI_API_KEY, and for Anthropic's in
ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY. Seen from here it is an
environment: its next request is the observation, the policy's reply is the action. So limits, oversight, records and
training are those of any episode. It needs `agent.name=program`.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from typing_extensions import override

from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.base import EnvAdapter, Hosting, Requirement
from verl_agent.envs.options import checked_options
from verl_agent.envs.program.fields import warn_once
from verl_agent.envs.program.harness import (
    Harness,
    absolute_command,
    check_environment,
    clean_environment,
    read_harness,
)
from verl_agent.envs.program.history import observe
from verl_agent.envs.program.inside import FirstProcess
from verl_agent.envs.program.place import Ended, FolderPlace, Launch, Place, RunsPrograms, SandboxPlace, visible_paths
from verl_agent.envs.program.task_file import read_tasks
from verl_agent.envs.registry import list_tasks, make_env, registered_envs
from verl_agent.errors import ConfigError, EnvError
from verl_agent.types import DemoAction, Message, StepResult, TaskItem

RESULT = 'Print {"reward": <number>} as the last line of its output.'
SANDBOX_ENDED = "sandbox_ended"
"""Measurement: programs that did not end by themselves in their sandbox."""
TAIL = 2000
"""Most characters of the program's errors in a message."""
OWN = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "VERL_AGENT_TASK")
"""Variables that each episode sets."""


class Program(EnvAdapter):
    """A command that is started once an episode, in an empty folder of its own or in the sandbox of an environment.

    The last line of its output is its result: `{"reward": 1.0}`. Another exit status than 0, or no result, is an
    environment error. In a sandbox the hidden tests judge instead. Since the policy's commands run there beside the
    program and can end it, any other end after the first request is a failure of the policy: the reward is 0.
    """

    action_format = LineFormat()
    only_agent = "program"
    ends_failed_tasks = False  # a new attempt would be a new process
    hosting = Hosting(sessions=32, busy=8)

    @checked_options
    def __init__(
        self,
        command: Sequence[str] | None = None,
        tasks: str | Mapping[str, Any] = "",
        deterministic: bool = False,
        harness: str | Mapping[str, Any] = "",
        environment: Sequence[str] = (),
        one_process: bool = False,
        folders: Sequence[str] = (),
    ) -> None:
        """Set the program and its tasks.

        Args:
            command: program and arguments. Paths are relative to the folder in which the run was started.
            tasks: JSONL file with one task a line: `id`, `split`, and optionally `data` and `category`. The program
                reads the JSON of `data` from VERL_AGENT_TASK. Or the name of an environment with a sandbox, or an
                object with this `name` and the options of this environment.
            deterministic: the program sends the same requests after the same replies; see `EnvAdapter`.
            harness: agent of others in place of `command`; see `read_harness`.
            environment: variables that the program gets: `NAME` with its value here, or `NAME=value`.
            one_process: only the process that asks first may use the endpoint, so none of its tools.
            folders: folders that the program can read in a sandbox beside its own.
        """
        if bool(command) == bool(harness):
            known = "both command and harness" if command else "neither command nor harness"
            raise ConfigError(f"env.options has {known}. Set one of them.")
        self._harness = (
            read_harness(harness) if harness else Harness(absolute_command(command or (), "env.options.command"))
        )
        self._templates = bool(harness)
        self._listed, self._one_process = check_environment(environment, OWN), one_process
        self._visible = [*visible_paths(self._harness.command), *(Path(folder).resolve() for folder in folders)]
        self.deterministic = deterministic
        self._world = _world(tasks)
        if self._world is None and harness:
            raise ConfigError(
                "env.options.harness needs tasks with hidden tests: the name of an environment with a sandbox, such as "
                "env.options.tasks=terminal."
            )
        self._file = Path(str(tasks)).resolve()
        if self._world is None and not self._file.is_file():
            raise ConfigError(f"env.options.tasks={tasks!r} is neither a file nor an environment with a sandbox.")
        self.splits = tuple(self._tasks if self._world is None else self._world.splits)
        self._gateway: Any = None
        self._place: Place | None = None
        self._asked: Any = None
        self._conversation: list[Message] = []

    @override
    @classmethod
    def requirements(cls) -> Sequence[Requirement]:
        install = "pip install 'verl-agent[program]'"
        return [Requirement.package("starlette", install), Requirement.package("uvicorn", install)]

    @cached_property
    def _tasks(self) -> dict[str, list[TaskItem]]:
        """Tasks of the file by split."""
        return read_tasks(self._file)

    def tasks(self, split: str) -> Sequence[TaskItem]:
        """Return the tasks of the file or of the environment."""
        self.check_split(split)
        if self._world is None:
            return self._tasks[split]
        return [replace(item, env="program") for item in list_tasks(self._world, split).values()]

    @override
    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        """Return the replies with which a harness runs the commands of the environment's own oracle.

        Raises:
            NotImplementedError: the program is no harness, or this is not written in it.
        """
        if self._world is None or not self._harness.acts:
            raise NotImplementedError("a program has an oracle if its harness has `acts` and its tasks have one")
        *commands, _ = self._world.demonstration(item)  # the last one ends the episode
        return [*(DemoAction(self._harness.act(str(one.action))) for one in commands), DemoAction(self._harness.ends)]

    @override
    def oracle_turns(self, item: TaskItem) -> int | None:
        return self._world.oracle_turns(item) if self._world is not None and self._harness.acts else None

    async def reset(self, item: TaskItem) -> list[Message]:
        """Start the program and return its first request."""
        from verl_agent.envs.program.gateway import Gateway

        await self.close()
        world: Any = None if self._world is None else self._world.new_session()
        self._place = place = FolderPlace() if world is None else SandboxPlace(world)
        self._gateway = Gateway(FirstProcess() if self._one_process and world is None else None)
        self._gateway.start(*place.listeners)
        place.start(self._launch(await place.begin(item, self._visible)), self._gateway.port, self._one_process)
        if (end := await self._next_request()) is not None:
            install = f" It needs: {self._harness.install}." if self._harness.install else ""
            raise EnvError(f"the program ended without a request to the model. {_errors(end)}{install}")
        self._conversation = self._asked.messages
        return self._conversation

    def _launch(self, data: Mapping[str, Any]) -> Launch:
        """Return the program for the data of a task."""
        assert self._place is not None  # reset set it
        url, key, home = self._gateway.url, self._gateway.token, self._place.home
        own = dict(zip(OWN, (f"{url}/v1", key, url, key, json.dumps(data)), strict=True))
        if self._world is not None:
            own["PATH"] = f"/usr/local/bin:/usr/bin:/bin:{Path(self._harness.command[0]).parent}"
        command, variables, files = list(self._harness.command), dict[str, str](), dict[str, str]()
        if self._templates:
            instruction = data.get("instruction", "")
            command, variables, files = self._harness.render(
                url=url, key=key, home=home, data=data, instruction=instruction
            )
        return Launch(command, clean_environment(home, self._listed, {**own, **variables}), files)

    async def step(self, action: str) -> StepResult:
        """Answer the program's request and wait for the next one, or for its end.

        A call that no program can take is answered at once, and the request goes on waiting.
        """
        if self._asked is None:
            return StepResult("The program has ended.", terminated=True)
        before = [*self._conversation, Message(role="assistant", content=action)]
        error: StepResult | None = self._gateway.refused(self._asked, action)
        if error is not None:
            self._conversation = [*before, Message(role="user", content=error.observation)]
            return error
        self._gateway.answer(self._asked, action)
        self._asked = None
        if (end := await self._next_request()) is None:
            self._conversation = self._asked.messages
            return observe(before, self._conversation)
        return await self._result(end)

    async def _next_request(self) -> Ended | None:
        """Wait for a request; return the end of the program if it ends first."""
        assert self._place is not None  # reset set it
        asking = asyncio.ensure_future(self._gateway.next_request())
        ending = asyncio.ensure_future(self._place.ended())
        try:
            await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                self._asked = asking.result()
                return None
            return ending.result()
        finally:
            asking.cancel()
            ending.cancel()

    async def _result(self, end: Ended) -> StepResult:
        if isinstance(self._place, SandboxPlace):
            if not end.limit and end.status in self._harness.statuses:
                return await self._place.grade()
            warn_once(f"a program in a sandbox did not end by itself, so its episode has the reward 0. {_errors(end)}")
            return StepResult(f"The program has ended. {_errors(end)}", 0.0, terminated=True, info={SANDBOX_ENDED: 1.0})
        if end.status not in self._harness.statuses:
            raise EnvError(f"the program ended with status {end.status}. {_errors(end)}")
        last = next((line for line in reversed(end.output.split("\n")) if line.strip()), "")
        try:
            return StepResult("The program has ended.", json.loads(last)["reward"], terminated=True)
        except (ValueError, KeyError, TypeError) as error:
            raise EnvError(f"the program ended with {last[:200]!r}, which is no result. {RESULT}") from error

    async def close(self) -> None:
        """Close the endpoint, kill the program with all that it has started, and remove its folder."""
        place, gateway, self._place, self._gateway, self._asked = self._place, self._gateway, None, None, None
        try:
            if gateway is not None:
                await gateway.close()  # first: it listens on sockets of the place
        finally:
            if place is not None:
                await place.close()


def _world(tasks: str | Mapping[str, Any]) -> EnvAdapter | None:
    """Return the environment whose tasks are played in its sandbox; None for the name of a file.

    Raises:
        ConfigError: it has no sandbox for programs.
    """
    options = {"name": tasks} if isinstance(tasks, str) else dict(tasks)
    name = options.pop("name", "")
    if isinstance(tasks, str) and (name not in registered_envs() or Path(name).is_file()):
        return None
    env = make_env(str(name), options)
    if not isinstance(env, RunsPrograms):
        raise ConfigError(f"env.options.tasks={name!r}: this environment has no sandbox for programs. Try terminal.")
    return env


def _errors(end: Ended) -> str:
    if end.limit:
        return f"Its sandbox was ended: {end.limit}."
    text = end.errors.strip()
    return f"Its errors: {text[-TAIL:]}" if text else "It wrote no errors."
