"""Sessions as the episode loop uses them: with limited calls, and replayed after an environment error."""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from typing_extensions import override

from verl_agent.envs.answers import checked
from verl_agent.envs.session import Session
from verl_agent.errors import (
    ActionError,
    AgentError,
    EnvCrashError,
    EnvError,
    EnvTimeoutError,
    HostLostError,
    env_failure,
)
from verl_agent.types import Action, Message, StepResult, TaskItem

logger = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 5.0
"""Most seconds that an episode waits for its session to close."""
CRASH_WAIT_S, MOST_CRASH_WAIT_S = 0.2, 5.0
"""Seconds before a call is repeated that raised an `EnvCrashError`: the first ones, doubled each time, and the most."""


class WrappedSession:
    """Session that passes on all calls; subclasses override those that they change."""

    def __init__(self, session: Session) -> None:
        self._session = checked(session)
        self.success_reward, self.deterministic = session.success_reward, session.deterministic

    def reset(self, item: TaskItem) -> Coroutine[Any, Any, list[Message]]:
        """Begin an episode."""
        return self._session.reset(item)

    def step(self, action: Action) -> Coroutine[Any, Any, StepResult]:
        """Play an action."""
        return self._session.step(action)

    def close(self) -> Coroutine[Any, Any, None]:
        """Close the session."""
        return self._session.close()


class ReplayDiffersError(EnvError):
    """A fresh session answered the same actions differently, so the episode cannot continue on it."""


class RecoveringSession(WrappedSession):
    """Session whose calls are limited in time, and which continues on a fresh one after an environment error.

    Any exception of the environment is an `EnvError`. Where the environment is deterministic, a failed step is repeated
    on a fresh session, after all actions before it. The policy keeps its replies. An episode that is played anew
    instead draws other replies, so actions that fail and long episodes, which meet more errors, would be
    under-represented. Retries count per call: a call may fail `1 + retries` times in a row, after a timeout or a lost
    host twice, and success resets its count. A long episode is therefore about as likely to become valid as a short
    one. All together, an episode is replayed at most `retries` times for each call that it has made.

    A step whose tries all raised the same `EnvCrashError` shows that its action is the reason. Nothing else is evidence
    against an action: a timeout, a lost host or a plain `EnvError` may have other reasons.

    Args:
        timeout_s: most seconds of one call; None if sessions limit their calls themselves.
        retries: further tries of a call, >= 0.
        count_action_errors: raise `ActionError` for a step whose action is the reason; False to raise `EnvError`.
    """

    def __init__(
        self,
        new_session: Callable[[], Session],
        timeout_s: float | None = None,
        retries: int = 0,
        count_action_errors: bool = True,
    ) -> None:
        self._new_session, self._timeout_s = new_session, timeout_s
        super().__init__(new_session())
        self._retries, self._count_action_errors = retries, count_action_errors
        self._item: TaskItem | None = None
        self._prompt: list[Message] = []
        self._played: list[tuple[Action, StepResult]] = []
        self.errors: list[str] = []
        """Errors after which the actions were replayed, oldest first."""
        self.blames_action = False
        """True if the last action is the reason for the error that ends the episode."""
        self._at = 0

    @override
    async def reset(self, item: TaskItem) -> list[Message]:
        """An error is raised: nothing was played that a replay could keep."""
        self._item = item
        async with _env_call("reset", self._timeout_s):
            self._prompt = await self._session.reset(item)
        return self._prompt

    @override
    async def step(self, action: Action) -> StepResult:
        """Play an action, and replay the episode after an error.

        Raises:
            ActionError: the step raised the same `EnvCrashError` in all its tries.
            EnvError: it fails for another reason, and cannot be repeated any more.
        """
        try:
            async with _env_call("step", self._timeout_s):
                result = await self._session.step(action)
        except EnvError as error:
            result = await self._repeat(action, error)
        self._played.append((action, result))
        return result

    @override
    async def close(self) -> None:
        """Close the session; an error is ignored, since the pool cleans up a session that fails to close."""
        with suppress(AgentError):
            async with _env_call("close", min(self._timeout_s or CLOSE_TIMEOUT_S, CLOSE_TIMEOUT_S)):
                await self._session.close()

    async def _repeat(self, action: Action, error: EnvError) -> StepResult:
        """Repeat a failed step on fresh sessions until it succeeds, or a call or the episode has no retries left."""
        here = self._at = len(self._played) + 1
        failures, tries, most = Counter({here: 1}), [error], self._retries * (here + 1)
        while self.deterministic and failures[self._at] <= self._retries_after(error) and len(self.errors) < most:
            self.errors.append(str(error))
            await self.close()
            if isinstance(error, EnvCrashError):  # it may be an outage that `env_failure` does not recognize
                await asyncio.sleep(min(CRASH_WAIT_S * 2 ** (failures[self._at] - 1), MOST_CRASH_WAIT_S))
            self._session = checked(self._new_session())
            try:
                return await self._replay(action, failures)
            except ReplayDiffersError as differs:
                raise ReplayDiffersError(f"{error} (the replay on a fresh session gave other answers)") from differs
            except EnvError as failed:
                error = failed
            failures[self._at] += 1
            tries += [error] if self._at == here else []
        raise self._explained(tries) if self._at == here else error

    def _retries_after(self, error: EnvError) -> int:
        """Return how often a call is repeated; once if that costs the time limit, or a host with its other sessions."""
        return min(1, self._retries) if isinstance(error, EnvTimeoutError | HostLostError) else self._retries

    async def _replay(self, action: Action, failures: Counter[int]) -> StepResult:
        """Play the task's actions so far and then `action` on the fresh session.

        Args:
            failures: by number of the call, 0 for the reset, how often it failed in a row; success sets it to 0.

        Raises:
            ReplayDiffersError: an answer is not the one of the first session.
            EnvError: the call with the number `_at` failed.
        """
        assert self._item is not None, "step came before the first reset."
        self._at = 0
        async with _env_call("reset", self._timeout_s):
            prompt = await self._session.reset(self._item)
        if prompt != self._prompt:
            raise self._differs("the prompt")
        for played, expected in [*self._played, (action, None)]:
            failures[self._at] = 0
            self._at += 1
            async with _env_call("step", self._timeout_s):
                result = await self._session.step(played)
            if expected is not None and _seen(result) != _seen(expected):
                raise self._differs(f"the answer to action {self._at}, {played!r:.100},")
        return result

    def _explained(self, tries: Sequence[EnvError]) -> AgentError:
        """Return the error of a step that failed in all its tries: the action's if all of them show the same crash."""
        last = tries[-1]
        same = all(isinstance(one, EnvCrashError) and _text(one) == _text(last) for one in tries)
        if not same or len(tries) < max(2, 1 + self._retries):
            return last
        self.blames_action = True
        text = f"{last} (in each of {len(tries)} sessions, after the same actions)"
        return ActionError(text) if self._count_action_errors else EnvError(text)

    def _differs(self, what: str) -> ReplayDiffersError:
        assert self._item is not None
        logger.warning(
            "task %r of env %r: %s differs in a replay, so the episode is played anew. Set `deterministic = False` in "
            "an adapter whose episodes do not replay.",
            self._item.id,
            self._item.env,
            what,
        )
        return ReplayDiffersError(what)


def _seen(result: StepResult) -> tuple[str, float, bool]:
    """Return the part of a result that decides how an episode continues."""
    return result.observation, result.reward, result.terminated


def _text(error: EnvError) -> str:
    """Return the message of an error without addresses of servers and of objects, which differ between sessions."""
    return re.sub(r"https?://\S+|0x[0-9a-f]+", "", str(error))


@asynccontextmanager
async def _env_call(name: str, timeout_s: float | None) -> AsyncIterator[None]:
    """Limit the time of one call into an environment, and raise an EnvError for any exception of its own.

    Raises:
        EnvTimeoutError: the call exceeds the limit.
        EnvError: the call raises an exception that is not an `AgentError`, see `env_failure`.
    """
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            yield
    except AgentError:
        raise
    except Exception as error:  # boundary: adapters may raise anything
        if limit.expired():
            raise EnvTimeoutError(f"{name} took more than {timeout_s:g} s") from error
        raise env_failure(name, error) from error
