"""All actions of a reply as one step of a session."""

from collections.abc import Sequence
from dataclasses import replace

from verl_agent.envs.call_error import NOT_DONE, CallError, errors_of
from verl_agent.envs.session import Session
from verl_agent.returns import sum_rewards
from verl_agent.types import CallResult, StepResult

REJECTED = "The action was not carried out: "
"""Beginning of the observation of an action that an overseer rejected; the reason follows."""


class ReplySession:
    """Session whose step carries out all actions of a reply."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def step(self, results: list[CallResult]) -> StepResult:
        """Carry out the actions of a reply in order, and return their answers as one.

        Args:
            results: actions of the reply; each gets its answer. After the end of the task no further one is carried
                out.
        """
        ended = False
        for at, one in enumerate(results):
            if one.action is None:
                continue
            if ended:
                refused = CallError((NOT_DONE,), f"{one.name or one.action} was not carried out: the task has ended.")
                results[at] = CallResult(None, refused.step, refused.kinds, name=one.name)
                continue
            step = await self._session.step(one.action)
            answer = replace(step, info={**step.info, **one.info}) if one.info else step
            results[at] = replace(one, step=answer, errors=errors_of(step))
            ended = step.terminated or bool(step.info.get("failed_attempts"))
        return joined(results)


def joined(results: Sequence[CallResult]) -> StepResult:
    """Return the answers to the actions of a reply as one: texts together, and sums of rewards and measurements.

    A turn with several invalid actions counts as one invalid turn.
    """
    steps = [one.step for one in results if one.step is not None]
    if len(steps) == 1:
        return steps[0]
    names = dict.fromkeys(name for step in steps for name in step.info)
    info = {name: sum(step.info.get(name, 0.0) for step in steps) for name in names}
    if "invalid_action" in info:
        info["invalid_action"] = 1.0  # of the turn, which is invalid or not
    return StepResult(
        "\n\n".join(step.observation for step in steps),
        sum_rewards(step.reward for step in steps),
        any(step.terminated for step in steps),
        info,
        [one for step in steps for one in step.media],
    )


def rejection(reason: str) -> StepResult:
    """Return the answer to an action that is not carried out."""
    return StepResult(REJECTED + reason, info={"rejected_action": 1.0})
