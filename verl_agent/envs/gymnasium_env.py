"""Environments of this package in Gymnasium.

    import verl_agent.envs.gymnasium_env
    env = gymnasium.make("verl_agent/TextCraft-v0", split="easy_train", options={"prompt": "short"})

The import registers each installed environment under the name of its class. Gymnasium 1 finds no plugins by itself.
"""

import asyncio
import string
from collections.abc import Coroutine, Mapping
from importlib.metadata import entry_points
from typing import Any, ClassVar, TypeVar

import gymnasium
from gymnasium.spaces import Text
from typing_extensions import override

from verl_agent.envs.hosts.loops import EventLoopThread
from verl_agent.envs.registry import ENTRY_POINT_GROUP, list_tasks, make_env
from verl_agent.errors import ConfigError, did_you_mean

T = TypeVar("T")
MAX_TEXT = 1_000_000
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
        self._session = self.adapter.new_session()
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
        self._session = self.adapter.new_session()
        messages = self._run(self._session.reset(self._tasks[task]))
        self._text = "\n\n".join(message["content"] for message in messages)
        return self._text, {"task": task, "messages": messages}

    @override
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        result = self._run(self._session.step(action))
        self._text = result.observation
        return result.observation, float(result.reward), result.terminated, False, dict(result.info)

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
