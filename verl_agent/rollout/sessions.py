"""Sessions as the episode loop uses them: with limited calls, and replayed after an environment error."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from verl_agent.envs.session import Session
from verl_agent.errors import AgentError, EnvError, EnvTimeoutError, describe_exception
from verl_agent.types import Message, StepResult, TaskItem

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0
"""Most seconds that an episode waits for its session to close."""


class GuardedSession:
    """Session whose calls have a time limit and raise an `EnvError` for any exception of the environment.

    Args:
        session: fresh session.
        timeout_s: most seconds of one call; None if the session limits its calls itself.
    """

    def __init__(self, session: Session, timeout_s: float | None) -> None:
        self._session, self._timeout_s = session, timeout_s

    @property
    def success_reward(self) -> float:
        """See `Session`."""
        return self._session.success_reward

    @property
    def deterministic(self) -> bool:
        """See `Session`."""
        return self._session.deterministic

    async def reset(self, item: TaskItem) -> list[Message]:
        """See `Session.reset`."""
        async with _env_call("reset", self._timeout_s):
            return await self._session.reset(item)

    async def step(self, action: str) -> StepResult:
        """See `Session.step`."""
        async with _env_call("step", self._timeout_s):
            return await self._session.step(action)

    async def keep_alive(self) -> None:
        """See `Session.keep_alive`; an error is ignored, since the next step meets it again."""
        with suppress(AgentError):
            async with _env_call("keep_alive", self._timeout_s):
                await self._session.keep_alive()

    async def close(self) -> None:
        """Close the session; an error is ignored, since the pool cleans up a session that fails to close."""
        with suppress(AgentError):
            async with _env_call("close", min(self._timeout_s or CLOSE_TIMEOUT_S, CLOSE_TIMEOUT_S)):
                await self._session.close()


class ReplayingSession:
    """Session that continues on a fresh one after an environment error, where the environment is deterministic.

    A failed step is repeated on a fresh session, after all actions before it. The policy keeps its replies, so a long
    episode is as likely to become valid as a short one. An episode that is played anew instead draws other replies.
    Long episodes meet more errors, so they would then be under-represented.

    The error is raised, and ends the episode, if the environment is not deterministic, if the fresh session answers
    differently, or if the same step fails again.

    Args:
        new_session: factory of sessions.
        timeout_s: most seconds of one call; None if sessions limit their calls themselves.
        most: most fresh sessions after the first one, >= 0.
    """

    def __init__(self, new_session: Callable[[], Session], timeout_s: float | None, most: int) -> None:
        self._new_session, self._timeout_s, self._most = new_session, timeout_s, most
        self._session = self._fresh()
        self._item: TaskItem | None = None
        self._prompt: list[Message] = []
        self._played: list[tuple[str, StepResult]] = []
        self.errors: list[str] = []
        """Errors after which the actions were replayed, oldest first."""

    @property
    def success_reward(self) -> float:
        """See `Session`."""
        return self._session.success_reward

    @property
    def deterministic(self) -> bool:
        """See `Session`."""
        return self._session.deterministic

    async def reset(self, item: TaskItem) -> list[Message]:
        """See `Session.reset`. An error is raised: nothing was played that a replay could keep."""
        self._item, self._prompt = item, await self._session.reset(item)
        return self._prompt

    async def step(self, action: str) -> StepResult:
        """See `Session.step`."""
        try:
            result = await self._session.step(action)
        except EnvError as error:
            result = await self._step_on_fresh_session(action, error)
        self._played.append((action, result))
        return result

    async def keep_alive(self) -> None:
        """See `Session.keep_alive`."""
        await self._session.keep_alive()

    async def close(self) -> None:
        """See `Session.close`."""
        await self._session.close()

    def _fresh(self) -> GuardedSession:
        return GuardedSession(self._new_session(), self._timeout_s)

    async def _step_on_fresh_session(self, action: str, error: EnvError) -> StepResult:
        """Repeat the failed step after the actions before it; raise the last error if that is not possible."""
        while self.deterministic and len(self.errors) < self._most:
            self.errors.append(str(error))
            await self._session.close()
            self._session = self._fresh()
            try:
                same = await self._replay()
            except EnvError as failed:  # a replay that fails on its way is repeated
                error = failed
                continue
            if not same:
                raise EnvError(f"{error} (the replay on a fresh session gave other answers)") from error
            return await self._session.step(action)
        raise error

    async def _replay(self) -> bool:
        """Play the task's actions so far; return False at the first answer that differs from the recorded one."""
        assert self._item is not None, "step came before the first reset."
        if await self._session.reset(self._item) != self._prompt:
            return self._differs("the prompt")
        for turn, (action, expected) in enumerate(self._played, start=1):
            result = await self._session.step(action)
            if (result.observation, result.reward, result.terminated) != (
                expected.observation,
                expected.reward,
                expected.terminated,
            ):
                return self._differs(f"the answer to action {turn}, {action!r:.100},")
        return True

    def _differs(self, what: str) -> bool:
        assert self._item is not None
        logger.warning(
            "task %r of env %r: %s differs in a replay, so the episode is played anew. Set `deterministic = False` in "
            "an adapter whose episodes do not replay.",
            self._item.id,
            self._item.env,
            what,
        )
        return False


@asynccontextmanager
async def _env_call(name: str, timeout_s: float | None) -> AsyncIterator[None]:
    """Limit the time of one call into an environment, and raise an EnvError for any exception of its own.

    Args:
        name: name of the call, for messages.
        timeout_s: most seconds of the call, or None for no limit.

    Raises:
        EnvTimeoutError: the call exceeds the limit.
        EnvError: the call raises an exception that is not an `AgentError`.
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
        raise EnvError(f"{name} failed: {describe_exception(error)}") from error
