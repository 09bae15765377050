"""Session that starts a failed task again within the same episode, after a reflection."""

from collections.abc import Callable
from dataclasses import replace

from typing_extensions import override

from verl_agent.agents.base import Agent
from verl_agent.envs.session import Session
from verl_agent.errors import EnvCrashError, EnvError
from verl_agent.returns import reaches, sum_rewards
from verl_agent.rollout.sessions import WrappedSession
from verl_agent.types import Action, Message, StepResult, TaskItem

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
        self._left = retries
        self._rewards: list[float] = []
        self._item: TaskItem | None = None

    @override
    async def reset(self, item: TaskItem) -> list[Message]:
        self._item = item
        return await super().reset(item)

    @override
    async def step(self, action: Action) -> StepResult:
        result = await super().step(action)
        self._rewards.append(result.reward)
        if not result.terminated or reaches(self._rewards, self.success_reward) or not self._left:
            return result
        assert self._item is not None, "step came before the first reset."
        self._left -= 1
        try:
            prompt = await super().reset(self._item)
        except EnvCrashError as error:
            raise EnvError(str(error)) from error  # a failed reset is never the action's
        earlier, self._rewards = sum_rewards(self._rewards[:-1]), []
        text = f"{result.observation}\n\n{AGAIN}\n\n{prompt[-1]['content']}"
        info = {**result.info, "failed_attempts": 1.0}
        return replace(result, observation=text, reward=0.0 - earlier, terminated=False, info=info)


def with_retries(new_session: Callable[[], Session], agent: Agent) -> Session:
    """Return a new session, with further attempts at a failed task if the agent asks for them."""
    return RetryingSession(new_session(), agent.retry_failed) if agent.retry_failed else new_session()
