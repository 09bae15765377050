"""Pool of sessions that carries out only the actions that an approval policy allows, for servers."""

from collections.abc import Mapping

from verl_agent.envs.session import SessionPool
from verl_agent.errors import ConfigError
from verl_agent.rollout.approval import Approval
from verl_agent.rollout.oversight import REJECTED
from verl_agent.types import Message, Review, StepResult, TaskItem


class ApprovedPool:
    """A `SessionPool` whose sessions refuse actions by the rules of an approval policy.

    Args:
        pool: pool that runs the sessions.
        approval: rules, none of which asks a person: the client of a server would not wait.

    Raises:
        ConfigError: a rule asks a person.
    """

    def __init__(self, pool: SessionPool, approval: Approval) -> None:
        if approval.asks_person:
            raise ConfigError(
                "by: human is not allowed for a server, whose clients do not wait for a person. Let rules decide here "
                "(by: rule), and set evaluation.approve where the agent is played."
            )
        self._pool, self._approval = pool, approval
        self._observations: dict[int, str] = {}

    async def open(self) -> int:
        """See `SessionPool.open`."""
        return await self._pool.open()

    async def reset(self, session: int, item: TaskItem) -> list[Message]:
        """See `SessionPool.reset`."""
        messages = await self._pool.reset(session, item)
        self._observations[session] = messages[-1]["content"]
        return messages

    async def step(self, session: int, action: str) -> StepResult:
        """See `SessionPool.step`; a rejected action does not reach the environment."""
        decided = self._approval.decide(action, self._observations.get(session, ""))
        if isinstance(decided, Review) and decided.decision == "approved":
            result = await self._pool.step(session, action)
            self._observations[session] = result.observation
            return result
        await self._pool.keep_alive(session)  # raises what a step raises in a session that has ended
        reason = decided.reason if isinstance(decided, Review) else ""
        return StepResult(REJECTED + reason, info={"rejected_action": 1.0})

    async def keep_alive(self, session: int) -> None:
        """See `SessionPool.keep_alive`."""
        await self._pool.keep_alive(session)

    async def close(self, session: int) -> None:
        """See `SessionPool.close`."""
        self._observations.pop(session, None)
        await self._pool.close(session)

    def stats(self) -> Mapping[str, float]:
        """See `SessionPool.stats`."""
        return self._pool.stats()

    async def shutdown(self) -> None:
        """See `SessionPool.shutdown`."""
        await self._pool.shutdown()
