"""Approval policies at work: ordered rules that decide which actions of an agent are carried out."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from typing_extensions import override

from verl_agent.envs.action_target import ActionTarget
from verl_agent.envs.session import SessionPool
from verl_agent.errors import AgentError, ConfigError, describe_exception
from verl_agent.oversight.base import MAX_REASON, Decision, Overseer, Proposal
from verl_agent.oversight.rules import ANY, HUMAN, RULE, Rule
from verl_agent.rollout.actions import rejection
from verl_agent.types import Action, Episode, Message, StepResult, TaskItem

NOT_LISTED = Rule([ANY], decision="reject", reason="no rule of the approval policy allows it.")


class Approval(Overseer):
    """Overseer that decides by the first rule that applies; an action that none applies to is rejected.

    Args:
        describe: see `EnvAdapter.describe_action`.
        person: person whom rules ask; None if no rule does, or none may be asked.
    """

    def __init__(
        self, rules: Sequence[Rule], describe: Callable[[Action, str], ActionTarget], person: Overseer | None = None
    ) -> None:
        self._rules, self._describe, self._person = rules, describe, person
        self._asked: dict[int, Overseer | None] = {
            number: person if rule.by == HUMAN else rule.overseer(f"rules[{number}]")
            for number, rule in enumerate(rules, start=1)
            if rule.asks
        }

    @property
    def rules(self) -> Sequence[Rule]:
        """Rules in their order."""
        return self._rules

    @override
    @asynccontextmanager
    async def watch(self, episode: Episode) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for overseer in {id(one): one for one in self._asked.values() if one is not None}.values():
                await stack.enter_async_context(overseer.watch(episode))
            yield

    @override
    async def decide(self, proposal: Proposal) -> Decision | None:
        """A reply without an action passes. One with several is carried out only if each of them is approved.

        The person's own actions are not matched with the rules.
        """
        if proposal.reply is None:
            return None if self._person is None else await self._person.decide(proposal)
        return await self._decide(proposal, ())

    async def _decide(self, proposal: Proposal, edited_by: tuple[int, ...]) -> Decision | None:
        """Decide by the rules of all actions.

        Args:
            edited_by: numbers of the rules whose overseers have chosen the actions, the last one last.
        """
        found = [self.find(one, proposal.env_observation, later=at > 0) for at, one in enumerate(proposal.actions)]
        decision: Decision | None = None
        for number, rule in found:  # first of all, since nobody is asked about a reply that a rule forbids
            if not rule.asks:
                decision = Decision(rule.decision or "reject", reason=rule.reason or f"rule {number}", by=RULE)
                if decision.decision != "approve":
                    return decision
        for number, rule in {number: rule for number, rule in found if rule.asks}.items():
            if number in edited_by[-1:]:  # its own choice
                continue
            if number in edited_by:
                return Decision("reject", reason=f"rules {', '.join(map(str, edited_by))} do not agree.", by=RULE)
            decision = await self._ask(number, rule, proposal)
            if decision is not None and decision.decision == "edit" and rule.by != HUMAN:
                return await self._edited(number, rule, proposal, decision, edited_by)
            if decision is not None and decision.decision != "approve":
                return decision
        return decision

    async def _edited(
        self, number: int, rule: Rule, proposal: Proposal, edit: Decision, edited_by: tuple[int, ...]
    ) -> Decision:
        """Return the edit of an overseer if the rules of its actions, which may ask others, approve it too."""
        try:
            reply = proposal.apply(edit)
        except ConfigError as error:
            return Decision("reject", reason=f"{rule.by} chose another action, but {error}", by=rule.by)
        actions = tuple(result.action for result in proposal.agent.read(reply) if result.action is not None)
        changed = replace(proposal, reply=reply, actions=actions, candidates=())
        decision = await self._decide(changed, (*edited_by, number))
        if decision is None or decision.decision == "approve":
            return edit
        if decision.decision == "reject":
            return replace(decision, reason=f"{rule.by} chose another action, but {decision.reason}")
        return decision

    def find(self, action: Action, observation: str, later: bool = False) -> tuple[int, Rule]:
        """Return number and rule that decides on an action; an element that is only a guess is the person's question.

        Args:
            later: an action before it changes the observation, so that its elements are unknown.

        Returns:
            0 and a rule that rejects if no rule applies; a rule that approves or rejects has its reason.
        """
        target = self._describe(action, observation)
        if later and target.elements:
            target = replace(target, elements=None)
        numbered = list(enumerate(self._rules, start=1))
        number, rule = next((pair for pair in numbered if pair[1].applies(target)), (0, NOT_LISTED))
        if number and rule.decision == "reject" and rule.guesses(target):
            number, rule = next(((other, one) for other, one in numbered if one.by == HUMAN), (number, rule))
        if rule.decision == "reject" and not rule.reason:
            return number, replace(rule, reason=f"rule {number} of the approval policy forbids it.")
        return number, rule

    async def _ask(self, number: int, rule: Rule, proposal: Proposal) -> Decision | None:
        """Ask a person or another overseer. Whatever goes wrong, the action does not pass.

        Raises:
            ConfigError: an overseer of another package fails or returns no decision.
        """
        overseer = self._asked[number]
        if overseer is None:
            return Decision("reject", reason="a person has to decide, and no person is asked in this run.", by=RULE)
        asked_by = f"rule {number} of the approval policy asks you: {rule.describe()}"
        loop, limit = asyncio.get_running_loop(), asyncio.timeout(None)

        def begin() -> None:
            if rule.timeout_s is not None:
                limit.reschedule(loop.time() + rule.timeout_s)

        question = replace(proposal, timeout_s=rule.timeout_s, on_shown=begin, asked_by=asked_by)
        try:
            async with limit:
                if rule.by != HUMAN:  # a person may have to answer other questions first
                    begin()
                decision = await overseer.decide(question)
        except TimeoutError:
            if not limit.expired():
                raise
            decision = None
        except AgentError:
            raise
        except Exception as error:  # boundary: the overseer may be another author's code
            raise ConfigError(f"rule {number} asks {rule.who}, which failed: {describe_exception(error)}") from error
        ends_at = limit.when()
        blocked = ends_at is not None and loop.time() >= ends_at
        if limit.expired() or blocked:  # also one that caught the cancellation, and decided afterwards
            waited = f"{rule.who} has to decide, and did not within {rule.timeout_s:g} s."
            return Decision("reject", reason=waited, by=RULE)
        return decision if rule.by == HUMAN else checked(number, rule, decision)


def checked(number: int, rule: Rule, decision: object) -> Decision:
    """Return the decision of an overseer of another package, with its name.

    Raises:
        ConfigError: it is no decision that such an overseer may make.
    """
    if not isinstance(decision, Decision) or decision.decision in ("take_over", "hand_back"):
        raise ConfigError(
            f"rule {number} asks {rule.by!r}, whose decide() returned {decision!r:.200}. "
            "Allowed: Decision('approve'), 'edit', 'reject' or 'end'."
        )
    reason = decision.reason[:MAX_REASON]
    if not reason and decision.decision == "reject":
        reason = f"{rule.by} rejected it."
    return replace(decision, by=rule.by, reason=reason)


class ApprovedPool(SessionPool):
    """A `SessionPool` whose sessions refuse actions by the rules of an approval policy.

    Args:
        approval: rules, none of which asks anybody: the client of a server would not wait.

    Raises:
        ConfigError: a rule asks a person or another overseer.
    """

    def __init__(self, pool: SessionPool, approval: Approval) -> None:
        if asking := next((rule for rule in approval.rules if rule.asks), None):
            raise ConfigError(
                f"by: {asking.by} is not allowed for a server, whose clients do not wait for a decision. Let rules "
                "decide here (by: rule), and set evaluation.approve where the agent is played."
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
    async def step(self, session: int, action: Action) -> StepResult:
        """A rejected action does not reach the environment."""
        _, rule = self._approval.find(action, self._observations.get(session, ""))
        if rule.decision != "approve":
            return rejection(rule.reason)
        result = await self._pool.step(session, action)
        self._observations[session] = result.observation
        return result

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
