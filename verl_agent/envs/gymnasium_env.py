"""Environments of this package in Gymnasium.

    import verl_agent.envs.gymnasium_env
    env = gymnasium.make("verl_agent/TextCraft-v0", split="easy_train", options={"prompt": "short"})

The import registers each installed environment under the name of its class. Gymnasium 1 finds no plugins by itself.
"""

import asyncio
import string
from collections.abc import Coroutine, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, ClassVar, TypeVar

import gymnasium
import numpy as np
from gymnasium.spaces import Text
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory
from typing_extensions import override

from verl_agent.envs.answers import CheckedSession
from verl_agent.envs.hosts.loops import EventLoopThread
from verl_agent.envs.registry import ENTRY_POINT_GROUP, list_tasks, make_env
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.types import Action

T = TypeVar("T")
MAX_TEXT = 1_000_000
TEXT_BYTES = 8 + 4 * MAX_TEXT
"""Shared memory of a text: its number of bytes, then its UTF-8."""
SAMPLE_CHARS = 40
"""Most characters of a sampled action."""
NAMESPACE = "verl_agent"
OWN = "gymnasium"
"""Registered name of the adapter that plays Gymnasium's environments, which are registered already."""


def register_all() -> None:
    """Register each installed environment; nothing of it is imported before `make`."""
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name != OWN:
            gymnasium.register(
                id=f"{NAMESPACE}/{entry.attr}-v0",
                entry_point=f"{__name__}:{GymnasiumEnv.__name__}",
                kwargs={"name": entry.name},
            )


class AnyText(Text):
    """Texts of any characters; samples are short and printable."""

    def __init__(self) -> None:
        super().__init__(max_length=SAMPLE_CHARS, min_length=0, charset=string.printable)

    @override
    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= MAX_TEXT


class SharedTexts(Sequence[str]):
    """Texts that the environments of an `AsyncVectorEnv` write into its shared memory; each access reads the last one.

    Gymnasium's own texts have an index for each character, and are read once.
    """

    def __init__(self, memory: Any, count: int) -> None:
        self._bytes = np.frombuffer(memory.get_obj(), np.uint8).reshape(count, TEXT_BYTES)

    @override
    def __len__(self) -> int:
        return len(self._bytes)

    @override
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]
        row = self._bytes[index]
        return row[8 : 8 + int(row[:8].view(np.int64)[0])].tobytes().decode("utf-8", "surrogatepass")

    def __setitem__(self, index: int, text: str) -> None:
        raw = text.encode("utf-8", "surrogatepass")
        self._bytes[index, : 8 + len(raw)] = np.frombuffer(np.int64(len(raw)).tobytes() + raw, np.uint8)

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        """Return the texts of now: `AsyncVectorEnv` copies what it returns."""
        return tuple(self)


@create_shared_memory.register(AnyText)
def _create(space: AnyText, n: int = 1, ctx: Any = None) -> Any:
    return ctx.Array("B", n * TEXT_BYTES)


@read_from_shared_memory.register(AnyText)
def _read(space: AnyText, shared_memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(shared_memory, n)


@write_to_shared_memory.register(AnyText)
def _write(space: AnyText, index: int, values: str, shared_memory: Any) -> None:
    count = len(shared_memory) // TEXT_BYTES
    SharedTexts(shared_memory, count)[index] = values


class GymnasiumEnv(gymnasium.Env[str, str]):
    """Adapter as an environment of Gymnasium, whose observations and actions are texts.

    `reset` draws a task of the split by its seed, or takes the one of `options={"task": id}`. It returns rules and
    first observation as one text. `info` has the id of the task and the messages, and after a step the measurements.
    An action is bare: `get 1 oak log`.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]  # Gymnasium has no ClassVar

    def __init__(
        self, name: str, options: Mapping[str, Any] | None = None, split: str = "train", render_mode: str | None = None
    ) -> None:
        """Make the environment and list its tasks.

        Args:
            name: registered name.
            options: keyword arguments of the adapter.
            split: split of the tasks.
            render_mode: `ansi` for `render()`, which returns the last observation.

        Raises:
            ConfigError: the environment, an option or the split is unknown.
        """
        self.adapter = make_env(name, options)
        self._tasks = list_tasks(self.adapter, split)
        self._ids = list(self._tasks)
        self._session = CheckedSession(self.adapter.new_session())
        self._thread: EventLoopThread | None = None
        self._text = ""
        self.render_mode = render_mode
        self.observation_space, self.action_space = AnyText(), AnyText()

    @override
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        task = (options or {}).get("task")
        if task is None:
            task = self._ids[int(self.np_random.integers(len(self._ids)))]
        if task not in self._tasks:
            raise ConfigError(
                f"options['task']={task!r} is no task of this split. {did_you_mean(task, self._ids, 400)}"
            )
        self._run(self._session.close())
        self._session = CheckedSession(self.adapter.new_session())
        messages = self._run(self._session.reset(self._tasks[task]))
        self._text = "\n\n".join(message["content"] for message in messages)
        return self._text, {"task": task, "messages": messages}

    @override
    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        taken = self.adapter.action_format.from_text(action) if isinstance(action, str) else action
        result = self._run(self._session.step(taken))
        self._text = result.observation
        return result.observation, result.reward, result.terminated, False, dict(result.info)

    @override
    def render(self) -> str | None:
        return self._text if self.render_mode == "ansi" else None

    @override
    def close(self) -> None:
        if self._thread is not None:
            self._run(self._session.close())
            self._thread.end()
            self._thread = None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a call in the thread of the session; the caller may have an event loop of its own."""
        if self._thread is None:
            self._thread = EventLoopThread()
        return asyncio.run_coroutine_threadsafe(work, self._thread.loop).result()


register_all()
