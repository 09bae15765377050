"""Pool of sessions that carries out only the actions that an approval policy allows, for servers."""

from collections.abc import Mapping

from typing_extensions import override

from verl_agent.envs.session import SessionPool
from verl_agent.errors import ConfigError
from verl_agent.rollout.approval import Approval
from verl_agent.rollout.oversight import REJECTED
from verl_agent.types import Message, Review, StepResult, TaskItem


class ApprovedPool(SessionPool):
    """A `SessionPool` whose sessions refuse actions by the rules of an approval policy.

    Args:
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

    @override
    async def open(self) -> int:
        return await self._pool.open()

    @override
    async def reset(self, session: int, item: TaskItem) -> list[Message]:
        messages = await self._pool.reset(session, item)
        self._observations[session] = messages[-1]["content"]
        return messages

    @override
    async def step(self, session: int, action: str) -> StepResult:
        """A rejected action does not reach the environment."""
        decided = self._approval.decide(action, self._observations.get(session, ""))
        if isinstance(decided, Review) and decided.decision == "approved":
            result = await self._pool.step(session, action)
            self._observations[session] = result.observation
            return result
        await self._pool.keep_alive(session)  # raises what a step raises in a session that has ended
        reason = decided.reason if isinstance(decided, Review) else ""
        return StepResult(REJECTED + reason, info={"rejected_action": 1.0})

    @override
    async def keep_alive(self, session: int) -> None:
        await self._pool.keep_alive(session)

    @override
    async def close(self, session: int) -> None:
        self._observations.pop(session, None)
        await self._pool.close(session)

    @override
    def stats(self) -> Mapping[str, float]:
        return self._pool.stats()

    @override
    async def shutdown(self) -> None:
        await self._pool.shutdown()
