"""Environment `program`: a program of any kind plays the tasks with its own agent loop, and the policy answers it.

The program finds an endpoint for OpenAI's clients in OPENAI_BASE_URL and OPENAI_API_KEY, and for Anthropic's in
ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY. Seen from here it is an
environment: its next request is the observation, the policy's reply is the action. So limits, oversight, records and
training are those of any episode. It needs `agent.name=program`.
"""

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from typing_extensions import override

from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.base import EnvAdapter, Hosting, Requirement
from verl_agent.envs.program.conversation import to_observation
from verl_agent.errors import ConfigError, EnvError, did_you_mean
from verl_agent.types import Message, StepResult, TaskItem

RESULT = 'Print {"reward": <number>} as the last line of its output.'
MAX_DATA = 100_000
"""Most bytes of a task's data, which the program reads from its environment."""
TAIL = 2000
"""Most characters of the program's errors in a message."""


class Program(EnvAdapter):
    """A command that is started once an episode, in an empty folder of its own.

    The last line of its output is its result: `{"reward": 1.0}`. Another exit status than 0, or no result, is an
    environment error.
    """

    action_format = LineFormat()
    ends_failed_tasks = False  # a new attempt would be a new process
    hosting = Hosting(sessions=32, busy=8)

    def __init__(self, command: Sequence[str], tasks: str, deterministic: bool = False) -> None:
        """Set the program and its tasks.

        Args:
            command: program and arguments. Paths are relative to the folder in which the run was started.
            tasks: JSONL file with one task a line: `id`, `split`, and optionally `data` and `category`. The program
                reads the JSON of `data` from VERL_AGENT_TASK.
            deterministic: the program sends the same requests after the same replies; see `EnvAdapter`.
        """
        if isinstance(command, str) or not command or not all(isinstance(part, str) for part in command):
            raise ConfigError(
                f"env.options.command={command!r} is not allowed. Allowed: a list of texts, such as [python, agent.py]."
            )
        if not isinstance(deterministic, bool):
            raise ConfigError(f"env.options.deterministic={deterministic!r} is not allowed. Allowed: true, false.")
        if shutil.which(command[0]) is None:
            raise ConfigError(f"env.options.command: {command[0]!r} is not a program on this machine.")
        self._file = Path(tasks).resolve()
        if not self._file.is_file():
            raise ConfigError(f"env.options.tasks={tasks!r} is not a file.")
        here = Path.cwd()
        self._command = [str(here / part) if (here / part).is_file() else part for part in command]
        self.deterministic = deterministic
        self.splits = tuple(self._tasks)
        self._gateway: Any = None
        self._process: asyncio.subprocess.Process | None = None
        self._folder: Path | None = None
        self._asked: Any = None
        self._conversation: list[Message] = []

    @override
    @classmethod
    def requirements(cls) -> Sequence[Requirement]:
        install = "pip install 'verl-agent[program]'"
        return [Requirement.package("starlette", install), Requirement.package("uvicorn", install)]

    @cached_property
    def _tasks(self) -> dict[str, list[TaskItem]]:
        """Tasks by split."""
        found: dict[str, list[TaskItem]] = {}
        # Only a line feed ends a line: `splitlines` would break a text at U+2028, which JSON need not escape.
        for number, line in enumerate(self._file.read_text(encoding="utf-8").rstrip("\n").split("\n"), start=1):
            try:
                task = json.loads(line)
                unknown = set(task) - {"id", "split", "data", "category"}
                if unknown:
                    raise ConfigError(
                        f"{self._file}:{number}: {min(unknown)!r} is not a field of a task. "
                        f"{did_you_mean(min(unknown), ('id', 'split', 'data', 'category'))}"
                    )
                item = TaskItem("program", task["id"], task.get("data", {}), task.get("category", ""))
                if not all(isinstance(text, str) for text in (item.id, task["split"], item.category)):
                    raise TypeError("id, split and category must be texts")
                found.setdefault(task["split"], []).append(item)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(f"{self._file}:{number} is not a task ({error!r}). It needs id and split.") from error
            if len(json.dumps(item.data).encode()) > MAX_DATA:
                raise ConfigError(f"{self._file}:{number}: data has more than {MAX_DATA} bytes. Put it into a file.")
        return found

    def tasks(self, split: str) -> Sequence[TaskItem]:
        """Return the tasks of the file."""
        self.check_split(split)
        return self._tasks[split]

    async def reset(self, item: TaskItem) -> list[Message]:
        """Start the program and return its first request."""
        from verl_agent.envs.program.gateway import Gateway

        await self.close()
        self._gateway, self._folder = Gateway(), Path(tempfile.mkdtemp(prefix="program-"))
        self._gateway.start()
        variables = {
            "OPENAI_BASE_URL": f"{self._gateway.url}/v1",
            "OPENAI_API_KEY": self._gateway.token,
            "ANTHROPIC_BASE_URL": self._gateway.url,
            "ANTHROPIC_API_KEY": self._gateway.token,
            "VERL_AGENT_TASK": json.dumps(item.data),
        }
        with (self._folder / "stdout").open("wb") as stdout, (self._folder / "stderr").open("wb") as stderr:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=self._folder,
                env=os.environ | variables,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        if not await self._next_request():
            raise EnvError(f"the program ended without a request to the model. {self._errors()}")
        self._conversation = self._asked.messages
        return self._conversation

    async def step(self, action: str) -> StepResult:
        """Answer the program's request and wait for the next one, or for its end."""
        if self._asked is None:
            return StepResult("The program has ended.", terminated=True)
        before = [*self._conversation, Message(role="assistant", content=action)]
        self._gateway.answer(self._asked, action)
        self._asked = None
        if await self._next_request():
            self._conversation = self._asked.messages
            return StepResult(to_observation(before, self._conversation))
        return StepResult("The program has ended.", self._reward(), terminated=True)

    async def _next_request(self) -> bool:
        """Wait for a request; return False if the program ends first."""
        assert self._process is not None  # reset started it
        asking = asyncio.ensure_future(self._gateway.requests.get())
        ending = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                self._asked = asking.result()
                return True
            return False
        finally:
            asking.cancel()
            ending.cancel()

    def _reward(self) -> float:
        assert self._process is not None and self._folder is not None  # reset set both
        if self._process.returncode:
            raise EnvError(f"the program ended with status {self._process.returncode}. {self._errors()}")
        lines = (self._folder / "stdout").read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        try:
            return float(json.loads(last)["reward"])
        except (ValueError, KeyError, TypeError) as error:
            raise EnvError(f"the program ended with {last[:200]!r}, which is no result. {RESULT}") from error

    def _errors(self) -> str:
        assert self._folder is not None
        text = (self._folder / "stderr").read_text(encoding="utf-8", errors="replace").strip()
        return f"Its errors: {text[-TAIL:]}" if text else "It wrote no errors."

    async def close(self) -> None:
        """Kill the program and its children, and remove its folder."""
        process, self._process, self._asked = self._process, None, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if self._gateway is not None:
            await self._gateway.close()
            self._gateway = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
