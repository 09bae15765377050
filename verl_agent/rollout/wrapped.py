"""Base class of sessions that change the texts or actions of another session."""

from verl_agent.envs import answers
from verl_agent.envs.session import Session
from verl_agent.types import Message, StepResult, TaskItem


class WrappedSession:
    """Session that checks and passes on all calls; subclasses override those that they change."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.success_reward, self.deterministic = session.success_reward, session.deterministic

    async def reset(self, item: TaskItem) -> list[Message]:
        """Begin an episode."""
        return await answers.reset(self._session, item)

    async def step(self, action: str) -> StepResult:
        """Play an action."""
        return await answers.step(self._session, action)

    async def keep_alive(self) -> None:
        """Tell the session that the episode goes on."""
        await self._session.keep_alive()

    async def close(self) -> None:
        """Close the session."""
        await self._session.close()
