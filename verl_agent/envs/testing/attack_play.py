"""Episodes of the policies that attack an environment, and of its demonstrations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from verl_agent.envs import answers
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.testing import attacks
from verl_agent.envs.testing.attacks import Known, Policy, Seen
from verl_agent.envs.testing.harness import Harness
from verl_agent.envs.testing.violation import ContractViolation
from verl_agent.errors import ConfigError, describe_exception
from verl_agent.returns import sum_rewards
from verl_agent.types import Action, StepResult, TaskItem

RESET = "reset: "
AFTER = 5
"""Repetitions of the last action after the end of a demonstration."""
DISCOVERED = 300
"""Most listed actions of a task that are tried."""
TOGETHER = 8
"""Most episodes that are played at once."""


@dataclass(slots=True)
class Play:
    """Episode of a policy.

    Attributes:
        prompt: text of the first messages.
        error: exception that ended it, or "".
        after: reward that was paid after the end.
        next: reward that the next episode of its session paid for empty answers.
    """

    item: TaskItem
    prompt: str = ""
    actions: list[Action] = field(default_factory=list)
    steps: list[StepResult] = field(default_factory=list)
    error: str = ""
    after: float = 0.0
    next: float = 0.0

    @property
    def total(self) -> float:
        """Return of the episode."""
        return sum_rewards(step.reward for step in self.steps)

    @property
    def ended(self) -> bool:
        """True if the environment ended it."""
        return bool(self.steps) and self.steps[-1].terminated

    @property
    def paid(self) -> int | None:
        """Index of the first action that earned something."""
        return next((index for index, step in enumerate(self.steps) if step.reward > 0), None)

    def same(self, other: "Play") -> bool:
        """Return True if two plays had the same texts, rewards and ends."""
        return (self.prompt, self.steps, self.error) == (other.prompt, other.steps, other.error)


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
            seen = await self._begin(session, play)
            while seen and len(play.steps) < turns and not play.ended:
                action = policy(known, seen)
                if action is None or not await self._step(session, action, play, seen):
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
            if not await self._step(session, action, play, None):
                break
        return play.total

    async def _begin(self, session: EnvAdapter, play: Play) -> Seen | None:
        """Begin an episode; return None if the environment fails."""
        try:
            messages = await answers.reset(session, play.item)
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:  # boundary to the adapter, which may raise anything
            play.error = f"{RESET}{describe_exception(error)}"
            return None
        finally:
            self.harness.answered()
        play.prompt = "\n".join(message["content"] for message in messages)
        return Seen(list(messages))

    async def _step(self, session: EnvAdapter, action: Action, play: Play, seen: Seen | None) -> bool:
        play.actions.append(action)
        try:
            result = await answers.step(session, action, play.item)
        except (Exception, SystemExit) as error:  # boundary to the adapter, which may raise anything
            play.error = describe_exception(error)
            return False
        finally:
            self.harness.answered()
        play.steps.append(result)
        if seen:
            seen.actions.append(action)
            seen.messages.append({"role": "user", "content": result.observation})
            if result.info.get("invalid_action"):
                seen.refused.add(str(action))
        return True

    def sweep(
        self, known: Known, tries: Sequence[Callable[[Seen], Action]], over: Callable[[], bool]
    ) -> list[StepResult]:
        """Play each of some actions once, until the time is over; a session that ends is followed by another one.

        Returns:
            Answers, in order; one that is an exception counts as no reward.
        """
        answered: list[StepResult] = []

        def act(known: Known, seen: Seen) -> Action | None:
            place = len(answered) + len(seen.actions)
            return None if place >= len(tries) or over() else tries[place](seen)

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
        (opening,) = self.each([(known, lambda known, seen: None, 1)])
        actions = attacks.offered(known, Seen([{"role": "user", "content": opening.prompt}]))[:DISCOVERED]
        steps = self.sweep(known, [lambda seen, action=action: action for action in actions], over)  # type: ignore[misc]
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
