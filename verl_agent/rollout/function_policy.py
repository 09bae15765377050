"""Policies of plain Python: a function from messages to the text of a reply, by reference or by dotted path."""

import importlib
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from verl_agent.errors import ConfigError, describe_exception, did_you_mean
from verl_agent.rollout.policy import Policy
from verl_agent.system.threads import in_thread
from verl_agent.types import Message, Reply

ReplyFunction: TypeAlias = Callable[[list[Message]], str | Reply | Awaitable[str | Reply]]
"""Function of the visible messages that returns the reply; sync or async."""
PREFIX = "python:"
"""Beginning of a `model.path` that names a function or a class."""
EXAMPLE = "python:my_package.policies:reply"


class FunctionPolicy:
    """Policy that calls a function for each reply.

    A sync function runs in a thread, so that other episodes continue. Several episodes may call it at the same time.

    Args:
        function: function of the messages that returns a text or a `Reply`, or an awaitable of one.
        name: name of the function in error messages; None for its own.
    """

    def __init__(self, function: ReplyFunction, name: str | None = None) -> None:
        if not callable(function):
            raise ConfigError(
                f"{name or 'a policy'}={function!r} is not callable. Allowed: a function of the messages that returns "
                "the text of the reply."
            )
        self._function = function
        self._name = name or getattr(function, "__qualname__", repr(function))

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Call the function in a thread.

        Raises:
            ConfigError: the function raised, or returned neither a text nor a `Reply`.
        """
        try:
            answer: Any = await in_thread(self._function, list(messages))
            if inspect.isawaitable(answer):
                answer = await answer
        except ConfigError:
            raise
        except Exception as error:  # boundary: the function is the user's code
            raise ConfigError(f"{self._name} failed: {describe_exception(error)}. Correct it and run again.") from error
        if isinstance(answer, str):
            return Reply(answer)
        if isinstance(answer, Reply):
            return answer
        raise ConfigError(
            f"{self._name} returned {answer!r:.100} of type {type(answer).__name__}. Allowed: the text of the reply "
            "(str), or a verl_agent.types.Reply."
        )


def load_policy(path: str, key: str = "model.path") -> Callable[[], Policy]:
    """Return a factory of policies for `python:MODULE:NAME`.

    `NAME` is a function (see `FunctionPolicy`), or a class without constructor arguments whose `reply` method is such a
    function. Each attempt at an episode gets an instance of its own.

    Raises:
        ConfigError: the path is malformed, the module does not import, or the name is missing or not callable. The
            factory raises it if the class cannot be constructed.
    """
    module_name, _, name = path.removeprefix(PREFIX).partition(":")
    if not path.startswith(PREFIX) or not module_name or not name:
        raise ConfigError(f"{key}={path!r} is not allowed. Allowed: python:MODULE:NAME, for example {EXAMPLE}.")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # boundary: the module is the author's code
        start = f"{key}={path!r}: module {module_name!r} does not import"
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise ConfigError(
                f"{start}: {error}. Install its package, or start the command in the folder that contains it."
            ) from error
        raise ConfigError(f"{start}: {describe_exception(error)}. Correct the module.") from error
    found: Any = getattr(module, name, None)
    if found is None:
        names = [one for one in vars(module) if not one.startswith("_")]
        raise ConfigError(f"{key}={path!r}: module {module_name!r} has no {name!r}. {did_you_mean(name, names)}")
    if inspect.isclass(found):
        if not callable(getattr(found, "reply", None)):
            raise ConfigError(f"{key}={path!r}: class {name!r} has no method `reply`. Add `reply(self, messages)`.")

        def new_policy() -> Policy:
            try:
                instance: Any = found()
            except Exception as error:  # boundary: the constructor is the author's code
                raise ConfigError(
                    f"{key}={path!r}: class {name!r} cannot be constructed: {describe_exception(error)}. "
                    "Allowed: a class without required constructor arguments, or a function of the messages."
                ) from error
            return FunctionPolicy(instance.reply, path)

        return new_policy
    if not callable(found):
        raise ConfigError(
            f"{key}={path!r}: {name!r} is of type {type(found).__name__}. Allowed: a function of the messages, or a "
            "class with a method `reply`."
        )
    return lambda: FunctionPolicy(found, path)
