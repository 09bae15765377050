"""Base class of environments whose actions are calls of typed functions."""

import asyncio
import errno
import inspect
import json
import subprocess
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar, final

from typing_extensions import override

from verl_agent.envs.action_format import ActionFormat, ToolFormat
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.call_error import FAILED, CallError
from verl_agent.envs.parsing import shorten
from verl_agent.envs.tool_check import CheckedCall, check_action
from verl_agent.envs.tools import MARK, Tool
from verl_agent.errors import (
    ACCESS_DENIED,
    AgentError,
    ConfigError,
    EnvError,
    describe_exception,
    exception_text,
    http_status,
    is_outage,
    machine_failed,
)
from verl_agent.types import StepResult, ToolCall

NO_RESULT = "(no result)"
"""Observation after a function that returns None or an empty text."""
ANSWERS = (
    *(FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError),
    *(ProcessLookupError, subprocess.TimeoutExpired, ValueError),
)
"""Exceptions about what the model asked for, among those of the machine; some libraries' are both, as for a URL."""
ANSWER_CODES = (
    *(errno.ENAMETOOLONG, errno.ENOTEMPTY, errno.ELOOP, errno.EINVAL),
    *(errno.E2BIG, errno.ENOEXEC, errno.EXDEV),
)
"""Codes of such an `OSError` that has no class of its own."""


class ToolEnv(EnvAdapter):
    """Environment whose actions are calls of its methods that are marked with `tool`.

    A method may be asynchronous. It returns the observation as a text, a `StepResult` with reward and end, or any JSON
    value, dataclass, pydantic model, or number and array of NumPy or torch, which the model reads as JSON. An exception
    becomes an answer to the model and counts as `call_error_function_failed`. `EnvError` ends the episode, and so does
    a failure of the machine, the network or a service, see `machine_failed`.

    Example:
        >>> class Shop(ToolEnv):
        ...     @tool
        ...     def price(self, item: str) -> float:
        ...         '''Return the price of an item.'''
        ...         return 2.5
    """

    tools: ClassVar[Sequence[Tool]] = ()
    """Tools that are known by their schema alone; `call_schema_tool` carries their calls out."""
    action_format: ActionFormat = ToolFormat()
    _attributes: ClassVar[Mapping[str, str]] = {}
    """Name of the method of each tool."""

    @override
    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        methods: dict[str, tuple[Any, bool]] = {}
        for owner in reversed(cls.__mro__):
            for name, value in vars(owner).items():
                function = getattr(value, "__func__", value)  # of a static method or a class method
                settings: Any = getattr(value, MARK, getattr(function, MARK, None))
                if settings is None and name in methods and callable(function):
                    settings = getattr(methods[name][0], MARK)  # an override of a tool is one
                if settings is not None and callable(function):
                    setattr(function, MARK, settings)
                    methods[name] = function, not isinstance(value, staticmethod)
        try:
            if hidden := next((name for name in methods if hasattr(ToolEnv, name)), None):
                raise ConfigError(
                    f"the tool {hidden!r} hides what an environment has by this name. Give the function another name, "
                    f"and write @tool(name={hidden!r})."
                )
            made = {name: Tool.of(function, bound, name) for name, (function, bound) in methods.items()}
            cls.action_format = ToolFormat(tools=(*made.values(), *cls.tools))
        except ConfigError as error:
            raise ConfigError(f"{cls.__name__}: {error}") from error
        cls._attributes = {one.name: name for name, one in made.items()}

    @final
    @override
    async def step(self, action: Any) -> StepResult:
        """Check a call and carry it out. A text with the JSON of a call is one, too."""
        checked = check_action(self.action_format.tools, action)
        if isinstance(checked, CallError):
            return checked.step
        try:
            step = as_step(await self._call(checked))
        except AgentError:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the episode is cancelled
                raise
            return _failed(checked.call.name, error)
        except (Exception, SystemExit) as error:  # boundary: the function is the author's code
            if machine_failed(error) and not _is_answer(error):
                raise EnvError(f"{checked.call.name} failed: {describe_exception(error)}") from error
            return _failed(checked.call.name, error)
        step = self.after_call(checked.call, step)
        if not checked.info:
            return step
        info = {**step.info, **checked.info}
        return StepResult(step.observation, step.reward, step.terminated, info, step.media)

    async def _call(self, checked: CheckedCall) -> Any:
        function = checked.tool.function
        if function is None:
            return await self.call_schema_tool(ToolCall(checked.call.name, deepcopy(dict(checked.call.arguments))))
        values = deepcopy(dict(checked.call.arguments)) if checked.values is None else checked.values
        if (attribute := self._attributes.get(checked.tool.name)) is not None:  # even if an instance hides its method
            function = inspect.getattr_static(type(self), attribute).__get__(self, type(self))
        returned = function(**values)
        return await returned if inspect.isawaitable(returned) else returned

    async def call_schema_tool(self, call: ToolCall) -> Any:
        """Carry out the call of a tool of `tools`, whose arguments fit its schema; return what a method may return."""
        raise NotImplementedError(f"{type(self).__name__} has no call_schema_tool() for {call.name!r}.")

    def after_call(self, call: ToolCall, step: StepResult) -> StepResult:
        """Return the step with the reward and the end of the task, where tools set none; the default changes none."""
        return step


def _is_answer(error: BaseException) -> bool:
    """Return True if an exception may be about what the model asked for: a file, a page, a format, an argument."""
    if isinstance(error, ANSWERS) or http_status(error) in ACCESS_DENIED:
        return True
    if not isinstance(error, OSError) or is_outage(error) or http_status(error):
        return False
    # Libraries raise an OSError without a code for a bad file; that of urllib has another one as its reason.
    return error.errno in ANSWER_CODES or (error.errno is None and not isinstance(getattr(error, "reason", 0), OSError))


def _failed(name: str, error: BaseException) -> StepResult:
    message = exception_text(error)
    shown = f": {shorten(message, 300)}" if message else ""
    return CallError((FAILED,), f"{name} failed: {type(error).__name__}{shown}", name).step


def as_step(returned: Any) -> StepResult:
    """Return the step of what a function returned.

    Raises:
        ValueError: it returned something that is no JSON.
    """
    if isinstance(returned, StepResult):
        return returned
    if returned is None or isinstance(returned, str):
        return StepResult(returned or NO_RESULT)
    import pydantic_core

    try:
        value = pydantic_core.to_jsonable_python(returned, inf_nan_mode="constants", fallback=_of_library)
        return StepResult(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, TypeError, RecursionError) as error:
        kind = type(returned).__name__
        raise ValueError(f"it returned a {kind}, which is neither a text, a StepResult nor JSON: {error}") from error


def _of_library(value: Any) -> Any:
    """Return a number, an array or a tensor of NumPy, torch or pandas as numbers and lists, a time as text.

    Raises:
        ValueError: it is something else.
    """
    if getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M"):
        return value.astype(str).tolist()
    if not hasattr(value, "tolist"):
        raise ValueError(f"Unable to serialize unknown type: {type(value)}")
    return value.tolist()
