"""Episodes of the policies that attack an environment, and of its demonstrations."""

from collections.abc import Callable, Sequence
from functools import partial

from verl_agent.envs import answers
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.testing import attacks
from verl_agent.envs.testing.attacks import Known, Play, Policy
from verl_agent.envs.testing.harness import Harness
from verl_agent.envs.testing.violation import ContractViolation
from verl_agent.errors import ConfigError, describe_exception
from verl_agent.types import Action, StepResult, TaskItem

RESET = "reset: "
AFTER = 5
"""Repetitions of the last action after the end of a demonstration."""
DISCOVERED = 300
"""Most listed actions of a task that are tried."""
TOGETHER = 8
"""Most episodes that are played at once."""


class Player:
    """Plays policies in sessions of an environment; an exception of a step ends the episode and is kept."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.failed: list[Play] = []
        self.accepted, self.refused = set[str](), set[str]()
        self._threads = harness.threads(min(TOGETHER, harness.env.hosting.sessions))

    def each(self, jobs: Sequence[tuple[Known, Policy, int]], again: bool = False) -> list[Play]:
        """Play policies, several at once.

        Args:
            jobs: task, policy and turn limit.
            again: repeat the actions after the end of an episode, and then begin another one in its session.
        """
        size, played = len(self._threads), list[Play]()
        for begin in range(0, len(jobs), size):
            works = [partial(self._play, *job, again) for job in jobs[begin : begin + size]]
            played += self.harness.run(works, self._threads[: len(works)])
        self.failed += [play for play in played if play.error]
        return played

    def end(self) -> None:
        """End the threads."""
        self.harness.end(self._threads)
        self.harness.finish()

    async def _play(self, known: Known, policy: Policy, turns: int, again: bool) -> Play:
        play, session = Play(known.item), self.harness.new_session()
        try:
            begun = await self._begin(session, play)
            while begun and len(play.steps) < turns and not play.ended:
                action = policy(known, play)
                if action is None or not await self._step(session, action, play):
                    break
            if play.ended:
                last = play.actions[-1:]
                play.after = await self._earn(session, [*last * AFTER, *play.actions] if again else last, play.item)
            if again and await self._begin(session, second := Play(play.item)):
                play.next = await self._earn(session, [form("") for form in known.forms().values()], second.item)
        finally:
            await self.harness.close(session)
        return play

    async def _earn(self, session: EnvAdapter, actions: Sequence[Action], item: TaskItem) -> float:
        """Play actions; return what they earn until one raises."""
        play = Play(item)
        for action in actions:
            if not await self._step(session, action, play):
                break
        return play.total

    async def _begin(self, session: EnvAdapter, play: Play) -> bool:
        """Begin an episode; return False if the environment fails."""
        try:
            play.messages = await answers.reset(session, play.item)
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:  # boundary to the adapter, which may raise anything
            play.error = f"{RESET}{describe_exception(error)}"
            return False
        finally:
            self.harness.answered()
        return True

    async def _step(self, session: EnvAdapter, action: Action, play: Play) -> bool:
        play.actions.append(action)
        try:
            play.steps.append(await answers.step(session, action, play.item))
        except (Exception, SystemExit) as error:  # boundary to the adapter, which may raise anything
            play.error = describe_exception(error)
            return False
        finally:
            self.harness.answered()
        return True

    def sweep(
        self, known: Known, tries: Sequence[Callable[[Play], Action]], over: Callable[[], bool]
    ) -> list[StepResult]:
        """Play each of some actions once, until the time is over; a session that ends is followed by another one.

        Returns:
            Answers, in order; one that is an exception counts as no reward.
        """
        answered: list[StepResult] = []

        def act(known: Known, play: Play) -> Action | None:
            place = len(answered) + len(play.actions)
            return None if place >= len(tries) or over() else tries[place](play)

        while len(answered) < len(tries) and not over():
            (play,) = self.each([(known, act, known.turns)])
            answered += play.steps
            if play.error:
                answered.append(StepResult(play.error))
            if play.error.startswith(RESET):
                break
        return answered[: len(tries)]

    def discover(self, known: Known, over: Callable[[], bool]) -> None:
        """Try the actions that a task's first messages list, to learn which ones are refused."""
        (opening,) = self.each([(known, lambda known, play: None, 1)])
        actions = attacks.offered(known, Play(known.item, [{"role": "user", "content": opening.prompt}]))[:DISCOVERED]
        steps = self.sweep(known, [lambda play, action=action: action for action in actions], over)  # type: ignore[misc]
        for action, step in zip(actions, steps, strict=False):
            if not step.info.get("invalid_action"):
                self.accepted.add(str(action))
                self.refused.discard(str(action))
            elif str(action) not in self.accepted:
                self.refused.add(str(action))

    def demonstration(self, item: TaskItem) -> Sequence[Action]:
        """Return the actions of the demonstration, or none."""
        try:
            return self.harness.demonstration(item) or ()
        except ContractViolation:
            return ()  # `check-env` without attacks reports it


def demonstrated(actions: Sequence[Action], paid: int) -> dict[str, list[Action]]:
    """Return variants of a demonstration that should earn no more.

    Args:
        paid: index of its first action that earns something.
    """
    before, earning = list(actions[:paid]), actions[paid]
    return {
        "each action three times": [action for action in actions for _ in range(3)],
        "demonstration again": [*actions, *actions[-1:], *actions],
        "paid action again": [*before, *[earning] * (len(actions) + 3), *actions[paid + 1 :]],
        "paid action undone and done": [*before, earning, *[*before[-1:], earning] * 3, *actions[paid + 1 :]],
    }
