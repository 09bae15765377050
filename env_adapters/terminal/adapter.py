"""Terminal: an agent works in a shell, and hidden tests judge the files that it leaves."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from typing_extensions import override

from env_adapters.terminal.grading import TerminalTask, TestsFailedError
from env_adapters.terminal.harbor import HarborTask, harbor_folders, read_task
from env_adapters.terminal.runtimes import RuntimeName, make_runtime, read_limits, requirement
from env_adapters.terminal.sandbox import CommandOutcome, Sandbox, SandboxEndedError
from env_adapters.terminal.tasks import COUNTS, generate, held_out, names
from verl_agent.envs.action_format import FenceFormat
from verl_agent.envs.base import EnvAdapter, Hosting, Requirement
from verl_agent.envs.options import checked_options
from verl_agent.envs.tools import Tool, arguments
from verl_agent.errors import ConfigError, EnvError
from verl_agent.types import DemoAction, Message, StepResult, TaskItem, reaches

GENERATED = "generated"
SUBMIT = "submit"
MAX_COMMAND = 10_000
"""Most characters of an action."""
REASONS = {
    "seconds": "The command was ended: it took more than {command_s:g} seconds.",
    "memory": "The command was ended: its processes took more than {memory_mb} MiB of memory.",
    "processes": "The command was ended: it had more than {processes} processes.",
    "exit": "The shell has ended.",
    "cpu": "The sandbox was ended: its commands took more than {cpu_s} CPU seconds.",
    "files": "The sandbox was ended: it created more than {files} files.",
}
FINAL = ("cpu", "files")
"""Limits that end the episode."""
PROGRAM_LIMITS = {
    "cpu_s": 600,
    "memory_mb": 2048,
    "disk_mb": 128,
    "files": 50_000,
    "processes": 256,
    "open_files": 1024,
}
"""Limits of a sandbox in which a program with its own agent loop runs, where the options have none."""
FREE_FOLDER = "/task"
"""Working folder of generated tasks where files of a program lie below the usual one."""
log = logging.getLogger(__name__)


class Terminal(EnvAdapter):
    """Shell in a sandbox. The reward of `submit` is 1 if the hidden tests pass, else 0."""

    splits = ("train", "test", *(f"{size}_{part}" for size in COUNTS for part in ("train", "test")))
    action_format = FenceFormat(
        placeholder="<commands>",
        tools=(
            Tool(SUBMIT, "End the episode when the task is done.", line=SUBMIT),
            Tool("run", "Run commands in the shell.", arguments(commands={"type": "string"}), line="{commands}"),
        ),
    )
    hosting = Hosting(sessions=64, memory_mb=4096)

    @checked_options
    def __init__(
        self,
        tasks: str = GENERATED,
        runtime: RuntimeName = "bubblewrap",
        image: str = "python:3.11-slim",
        limits: Mapping[str, Any] | None = None,
    ) -> None:
        """Check the options.

        Args:
            tasks: `generated`, or a folder with tasks in Harbor's format.
            runtime: `bubblewrap`, `docker` or `podman`.
            image: image of containers, with Python 3.11 or later and bash.
            limits: limits of a sandbox; see `Limits`.
        """
        self.source, self.runtime = str(tasks), make_runtime(runtime, image)
        self._chosen = dict(limits or {})
        self.limits = read_limits(self._chosen, {})
        self._layout: dict[str, Any] = {}
        if self.source != GENERATED:
            self.splits = ("all",)
        self._sandbox: Sandbox | None = None
        self._ended = True

    @classmethod
    @override
    def requirements(cls) -> Sequence[Requirement]:
        return (requirement(),)

    @override
    def tasks(self, split: str) -> Sequence[TaskItem]:
        """Return the generated tasks of a split, or all tasks of a folder that the runtime can play."""
        self.check_split(split)
        if self.source != GENERATED:
            return self._foreign()
        size, part = split.split("_") if "_" in split else ("", split)
        return [
            TaskItem("terminal", name, {"name": name}, name.rpartition("-")[0])
            for name in names(size)
            if held_out(name) == (part == "test")
        ]

    def _foreign(self) -> list[TaskItem]:
        """Return the tasks of the folder; log those left out.

        Raises:
            ConfigError: none is left.
        """
        items, left_out = [], {}
        for folder in harbor_folders(self.source):
            task = read_task(folder)
            if task.missing and (self.runtime.name == "bubblewrap" or not task.layout.image):
                left_out[folder.name] = task.missing
            else:
                items.append(TaskItem("terminal", folder.name, {"name": folder.name}, "harbor"))
        for name, missing in left_out.items():
            log.warning(
                "the task %s is left out: the runtime %s lacks what it needs: %s", name, self.runtime.name, missing
            )
        if not items:
            name, missing = next(iter(left_out.items()))
            raise ConfigError(
                f"env.options.tasks={self.source!r}: no task can be played with runtime={self.runtime.name!r}. "
                f"{name} needs more than a plain image: {missing}. Give the task a docker_image and set runtime=docker."
            )
        return items

    def _task(self, item: TaskItem) -> TerminalTask | HarborTask:
        name = str(item.data["name"])
        if self.source == GENERATED:
            return _generated(name)
        return read_task(next(folder for folder in harbor_folders(self.source) if folder.name == name))

    @override
    async def reset(self, item: TaskItem) -> list[Message]:
        """Start a sandbox with the files of the task."""
        check_runtime(self.runtime.name)
        await self.close()
        task, self._name = self._task(item), item.id
        self._limit_s = min(self.limits.episode_s, getattr(task, "agent_s", self.limits.episode_s))
        self._current, self._left_s = task, self._limit_s
        layout = replace(task.layout, **self._layout)
        self._folder, self._sandbox = layout.folder, Sandbox(self.runtime, self.limits, layout)
        if not self._sandbox.put(task.begin()):
            raise EnvError(f"the files of {item.id} do not fit into env.options.limits.disk_mb={self.limits.disk_mb}.")
        self._ended = False
        system = _prompt().format(folder=self._folder, seconds=self.limits.command_s)
        return [{"role": "system", "content": system}, {"role": "user", "content": task.instruction}]

    @override
    async def step(self, action: str) -> StepResult:
        if self._ended or self._sandbox is None:
            return StepResult("The episode has ended.", terminated=True)
        command = action.replace("\0", "").strip()
        if not command or len(command) > MAX_COMMAND:
            return StepResult(f"Write a command of at most {MAX_COMMAND} characters.", info={"invalid_action": 1.0})
        try:
            if command == SUBMIT:
                return await self._submit(self._sandbox)
            outcome = self._sandbox.run(command, max(0.1, min(self.limits.command_s, self._left_s)))
        except SandboxEndedError:  # only what the agent does can end it, so it counts as a failure of the policy
            await self.close()
            return StepResult("The sandbox has ended.", terminated=True, info={"sandbox_ended": 1.0})
        self._left_s -= outcome.seconds
        return await self._result(outcome)

    async def _result(self, outcome: CommandOutcome) -> StepResult:
        """Return the answer to commands."""
        lines = [outcome.text.rstrip("\n")] if outcome.text.strip() else []
        if outcome.reason in REASONS:
            lines.append(REASONS[outcome.reason].format(**asdict(self.limits)))
        elif outcome.status:
            lines.append(f"[exit status {outcome.status}]")
        over = outcome.reason in FINAL or self._left_s <= 0
        if over:
            lines.append(f"The episode has ended after {self._limit_s:g} seconds." if self._left_s <= 0 else "")
            await self.close()
        elif not outcome.kept:
            lines.append(f"A new shell starts in {self._folder}; variables are lost.")
        info = {"invalid_action": 1.0} if outcome.status == 127 else {}
        return StepResult("\n".join(filter(None, lines)) or "(no output)", 0.0, over, info)

    async def _submit(self, sandbox: Sandbox) -> StepResult:
        """Take the files out of the sandbox, end it, and run the hidden tests on copies."""
        files = sandbox.take(self._folder)
        await self.close()
        try:
            reward = 0.0 if files is None else self._current.grade(files, self.runtime, self.limits)
        except TestsFailedError as failure:
            log.warning("the hidden tests of the task %s failed: %s", self._name, failure)
            return StepResult(f"The hidden tests failed: {failure}.", terminated=True, info={"tests_failed": 1.0})
        passed = "pass" if reaches([reward], self.success_reward) else "do not pass"
        return StepResult(f"The hidden tests {passed}.", reward, terminated=True)

    async def begin_program(self, item: TaskItem, visible: Sequence[Path]) -> str:
        """Start a sandbox for a program with its own agent loop; see `verl_agent.envs.program.place.RunsPrograms`."""
        closed = [(path, folder) for path in visible for folder in path.parents if not folder.stat().st_mode & 0o1]
        if closed and self.runtime.user is not None:
            path, one = closed[0]
            raise ConfigError(
                f"sandboxes run as nobody, who cannot enter {one}, which has {path} of the program. Allow it "
                f"(chmod a+x {one}), or use another place (TMPDIR for temporary files)."
            )
        folder = self._task(item).layout.folder
        if hidden := [path for path in visible if path.is_relative_to(folder)]:
            if self.source != GENERATED:
                raise EnvError(f"{hidden[0]} lies below {folder}, the folder of the task. Install it elsewhere.")
            folder = FREE_FOLDER
        self.limits = read_limits(self._chosen, PROGRAM_LIMITS)
        self._layout = {"folder": folder, "visible": tuple(visible)}
        return str((await self.reset(item))[-1]["content"])

    def run_program(self, text: str, settings: bytes) -> tuple[bytes, str]:
        assert self._sandbox is not None  # begin_program started it
        return self._sandbox.run_program(text, settings)

    def kill_program(self) -> None:
        if self._sandbox is not None:
            self._sandbox.kill()

    async def grade_program(self) -> StepResult:
        assert self._sandbox is not None  # begin_program started it
        return await self._submit(self._sandbox)

    @override
    async def close(self) -> None:
        self._ended = True
        if self._sandbox is not None:
            self._sandbox.end()
            self._sandbox = None

    @override
    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        """Return the commands of a solution.

        Raises:
            NotImplementedError: a task in Harbor's format has no solution.
        """
        commands = self._task(item).solution
        if not commands:
            raise NotImplementedError(f"{item.id} has no solution/solve.sh.")
        return [*(DemoAction(command) for command in commands), DemoAction(SUBMIT)]

    @override
    def oracle_turns(self, item: TaskItem) -> int | None:
        return len(self._task(item).solution) + 1 if self._task(item).solution else None


@cache
def check_runtime(name: str) -> None:
    """Raise ConfigError if this machine cannot start sandboxes of a runtime; ask once a process."""
    make_runtime(name, "").check()


@cache
def _prompt() -> str:
    return Path(__file__).with_name("prompts").joinpath("system.txt").read_text(encoding="utf-8").strip()


_generated = cache(generate)
