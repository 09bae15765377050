"""Session that starts a failed task again within the same episode, after a reflection."""

from collections.abc import Callable
from dataclasses import replace

from typing_extensions import override

from verl_agent.agents.base import Agent
from verl_agent.envs.session import Session
from verl_agent.errors import EnvCrashError, EnvError
from verl_agent.rollout.sessions import WrappedSession
from verl_agent.types import Message, StepResult, TaskItem

AGAIN = (
    "The task is not solved. It now starts anew, and nothing that you did remains. Before your next action, say in one "
    "or two sentences what went wrong and what you will do differently."
)


class RetryingSession(WrappedSession):
    """Session whose task starts again when the environment has ended it unsolved (`agent.options.retry_failed`).

    The model reads that it failed, a request to reflect, and the first observation again. The conversation continues:
    its memory is the failed attempts themselves (Reflexion, arXiv 2303.11366). The turn limit counts the turns of all
    attempts. The return is that of the last attempt: the turn that ends an attempt also has the reward that
    brings the sum to 0. A task that its environment does not end, such as one that the turn limit ends, is not
    started again.
    """

    def __init__(self, session: Session, retries: int) -> None:
        super().__init__(session)
        self._left, self._earned = retries, 0.0
        self._item: TaskItem | None = None

    @override
    async def reset(self, item: TaskItem) -> list[Message]:
        self._item = item
        return await super().reset(item)

    @override
    async def step(self, action: str) -> StepResult:
        result = await super().step(action)
        self._earned += result.reward
        if not result.terminated or self._earned >= self.success_reward or not self._left:
            return result
        assert self._item is not None, "step came before the first reset."
        self._left -= 1
        try:
            prompt = await super().reset(self._item)
        except EnvCrashError as error:
            raise EnvError(str(error)) from error  # a failed reset is never the action's
        earned, self._earned = self._earned, 0.0
        text = f"{result.observation}\n\n{AGAIN}\n\n{prompt[-1]['content']}"
        info = {**result.info, "failed_attempts": 1.0}
        return replace(result, observation=text, reward=result.reward - earned, terminated=False, info=info)


def with_retries(new_session: Callable[[], Session], agent: Agent) -> Session:
    """Return a new session, with further attempts at a failed task if the agent asks for them."""
    return RetryingSession(new_session(), agent.retry_failed) if agent.retry_failed else new_session()
