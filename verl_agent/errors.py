"""Errors that are raised on purpose, and words of their messages.

    AgentError
    ├── ConfigError          the run must not start or cannot continue; a person has to change something
    │   ├── EnvErrorLimitError  too many episodes failed in their environment
    │   └── ContractError       an environment returned a value that `EnvAdapter` does not allow
    ├── ReplyUnavailableError  an API or an engine gave no reply; the episode is not recorded and stays pending
    └── EpisodeEndError      ends one episode, which records the message and the stop reason of its class
        ├── OverlongPromptError  the prompt does not fit
        ├── RequestRefusedError  a server refuses the request of its turn
        ├── OperatorEndError     a person ended it
        ├── ActionError          its action raises the same error in every fresh session
        └── EnvError             a call into the environment failed
            ├── EnvCrashError
            ├── EnvTimeoutError
            ├── HostLostError
            ├── ConnectionLostError
            ├── UnknownSessionError
            └── PoolFullError

Any other exception is a bug in this package and propagates.
"""

import difflib
import traceback
from collections.abc import Iterable
from typing import ClassVar

MAX_MESSAGE_CHARS = 300
"""Most characters of someone else's error message in ours."""


class AgentError(Exception):
    """Base of everything raised on purpose."""


class ConfigError(AgentError):
    """A setting, a file or the machine does not allow this run; the message says what to change."""


class EnvErrorLimitError(ConfigError):
    """A larger share of episodes failed in their environment than `env.max_env_error_rate` allows."""


class ContractError(ConfigError):
    """An environment returned a value that `EnvAdapter` does not allow.

    It stops the run: another session would return it again, and neither the action nor the policy is its reason.
    """


class ReplyUnavailableError(AgentError):
    """An API gave no reply, also after retries, or an engine ended; the episode is not recorded and stays pending.

    Attributes:
        unsure: True for a refusal before any reply, whose reason may be a setting or the episode: it is played again
            after the others.
    """

    def __init__(self, message: str, unsure: bool = False) -> None:
        super().__init__(message)
        self.unsure = unsure


class EpisodeEndError(AgentError):
    """Ends one episode, whose record has the message."""

    stop: ClassVar[str]
    """Value of the episode's `StopReason`."""


class OverlongPromptError(EpisodeEndError):
    """A prompt exceeds `data.max_prompt_length`."""

    stop = "overlong_prompt"


class RequestRefusedError(EpisodeEndError):
    """A server of a model refuses the request of a turn twice; the message begins with the kind of the refusal."""

    stop = "request_refused"


class OperatorEndError(EpisodeEndError):
    """A person ended an episode."""

    stop = "operator"


class ActionError(EpisodeEndError):
    """An action raises the same error in every fresh session."""

    stop = "action_error"


class EnvError(EpisodeEndError):
    """A call into an environment failed."""

    stop = "env_error"


class EnvCrashError(EnvError):
    """The environment's own code raised an exception. The action may be the reason, see `RecoveringSession`.

    An adapter raises it for an exception of a simulator, and a plain `EnvError` for a service that does not answer.
    """


class EnvTimeoutError(EnvError):
    """A call into an environment took longer than `env.timeout_s`."""


class HostLostError(EnvError):
    """The host process of a session ended or does not respond; its sessions are lost."""


LOST_CONNECTION = "lost connection"
"""First words of the message of each `ConnectionLostError`, by which they are counted among recorded errors."""


class ConnectionLostError(EnvError):
    """The connection between a session and its server has ended, and the session with it."""

    def __init__(self, reason: str) -> None:
        # An error that comes from another process has the words already.
        super().__init__(reason if reason.startswith(LOST_CONNECTION) else f"{LOST_CONNECTION}: {reason}")


class UnknownSessionError(EnvError):
    """No open session has this number; it never existed, or it was closed."""


class PoolFullError(EnvError):
    """No slot for another session became free in time."""


MACHINE_FAILURES = (
    *("Timeout", "TimeoutError", "TimeoutExpired", "TimeoutException", "ConnectionError", "ConnectError"),
    *("ConnectionClosed", "ConnectionFailure", "NetworkError", "DisconnectedError", "RemoteProtocolError"),
    *("ProxyError", "PayloadError", "IncompleteRead", "MaxRetryError", "RateLimitError", "ServiceUnavailable"),
)
"""Ends of the names that libraries give to exceptions for a time limit, the network and a service."""
SQLITE_FAILURES = (5, 6, 7, 10, 13)
"""Codes of SQLite for a database that is busy or locked, no memory, a failed read or write, and a full disk."""


ACCESS_DENIED = (401, 402, 403, 407)
"""Statuses with which a service refuses the key, the account or the proxy of the one who asks."""


def env_failure(call: str, error: BaseException) -> EnvError:
    """Return the error of a call in which the environment's code raised `error`.

    It is no `EnvCrashError` if the exception or one of its causes is a failure of the machine.

    Args:
        call: name of the call, such as `step`.
        error: exception that is not an `AgentError`.
    """
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:  # an exception that is raised again may be its own context
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    kind = EnvError if any(machine_failed(one) for one in causes) else EnvCrashError
    return kind(f"{call} failed: {describe_exception(error)}")


def machine_failed(error: BaseException) -> bool:
    """Return True if an exception, or one of its group, reports a failure of the machine, the network or a service.

    Libraries are not imported: the status of an HTTP answer decides, then SQLite's code, then names of classes.
    """
    if isinstance(error, BaseExceptionGroup):
        return any(machine_failed(one) for one in error.exceptions)
    if status := http_status(error):
        return status in (*ACCESS_DENIED, 408, 429) or status >= 500
    if isinstance(code := getattr(error, "sqlite_errorcode", None), int):
        return code & 0xFF in SQLITE_FAILURES
    return is_outage(error) or isinstance(error, OSError | MemoryError)


def is_outage(error: BaseException) -> bool:
    """Return True if the class of an exception has a name for a time limit, the network or a service."""
    return any(kind.__name__.endswith(MACHINE_FAILURES) for kind in type(error).__mro__)


def http_status(error: BaseException) -> int | None:
    """Return the status, 400 to 599, of the HTTP answer that a library's exception reports; None without one."""
    if not isinstance(error, Exception):
        return None
    for holder in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "code"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and 400 <= value < 600:
                return value
    return None


def did_you_mean(name: str, known: Iterable[str], most_chars: int | None = None) -> str:
    """Return a hint for a name that is not among `known`: the closest name, or all names.

    Args:
        name: the name.
        known: allowed names.
        most_chars: most characters of the listed names, of which the first ones are kept; None for all names.
    """
    names = sorted(known)
    if close := difflib.get_close_matches(name, names, n=1):
        return f"Did you mean {close[0]!r}?"
    listed = ", ".join(names)
    if most_chars is not None and len(listed) > most_chars:
        kept = listed[:most_chars].split(", ")[:-1]
        return f"Known: {', '.join(kept)} and {len(names) - len(kept)} more."
    return f"Known: {listed or 'none'}."


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, which is in the plural unless the number is 1.

    Example:
        >>> counted(1, "process"), counted(2, "process"), counted(0, "reply")
        ('1 process', '2 processes', '0 replies')
    """
    if number == 1:
        return f"1 {noun}"
    if noun.endswith(("s", "x", "ch", "sh")):
        return f"{number} {noun}es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}s"


def exception_text(error: BaseException) -> str:
    """Return the text of an exception, whose `__str__` may be someone else's code."""
    try:
        return str(error)
    except Exception:  # boundary: the exception is the author's code, too
        return "(its text cannot be made)"


def describe_exception(error: BaseException) -> str:
    """Return type, message and source line of an exception that someone else's code raised.

    The line is the innermost one of the package that this package called, such as that of an adapter.

    Example:
        `KeyError: 'observation' (/home/me/my_env/adapter.py:42)`
    """
    message = exception_text(error)
    if len(message) > MAX_MESSAGE_CHARS:
        message = f"{message[:MAX_MESSAGE_CHARS]}…"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{text} ({error.filename}:{error.lineno})"
    frames = [
        (str(frame.f_globals.get("__name__", "")).partition(".")[0], f"{frame.f_code.co_filename}:{line}")
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = __name__.partition(".")[0]
    callers = (own, "importlib", "asyncio", "concurrent", "threading")
    package = next((name for name, _ in frames if name not in callers), own)
    lines = [line for name, line in frames if name == package]
    return f"{text} ({lines[-1]})" if lines else text
