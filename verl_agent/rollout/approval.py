"""Approval policies: ordered rules that decide which actions of an agent are carried out."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field
from pydantic.dataclasses import dataclass as settings_class

from verl_agent.envs.action_target import ActionTarget, action_names
from verl_agent.envs.base import EnvAdapter
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.rollout.oversight import Decision, Overseer, Proposal
from verl_agent.rollout.person import Person
from verl_agent.sections import STRICT, section
from verl_agent.types import Episode, Review

ANY = "*"
"""Every action, in `actions` of a rule."""
NOT_LISTED = "no rule of the approval policy allows it."


@settings_class(frozen=True, config=STRICT)
class Rule:
    """One rule of an approval policy. It applies to an action if all of its conditions hold.

    Attributes:
        actions: names of actions, such as `click`; `*` for all.
        elements: words or phrases, one of which the name of the element contains, in any case; empty for every element.
            An element whose name is unknown matches, unless the rule approves.
        text: regular expression that the action as a whole contains, in any case; null for every action.
        by: `rule` decides by `decision`, `human` asks a person.
        decision: `approve` or `reject`, for `by: rule`.
        reason: explanation that the agent reads after a rejection.
        timeout_s: seconds after which a question to a person is answered by a rejection; null for no limit.
    """

    actions: Sequence[str]
    elements: Sequence[str] = field(default_factory=list)
    text: str | None = None
    by: Literal["rule", "human"] = "rule"
    decision: Literal["approve", "reject"] | None = None
    reason: str = ""
    timeout_s: Annotated[float, Field(gt=0)] | None = None

    def __post_init__(self) -> None:
        if not self.actions:
            raise ConfigError("actions=[] matches nothing. Name actions, or '*' for all.")
        if self.by == "human" and (self.decision or self.reason):
            raise ConfigError("decision and reason are the person's with by: human. Remove them, or set by: rule.")
        if self.by == "rule" and self.decision is None:
            raise ConfigError("decision is missing. Allowed: approve, reject; or set by: human.")
        if self.by == "rule" and self.timeout_s is not None:
            raise ConfigError(f"timeout_s={self.timeout_s:g} has no effect with by: rule. Remove it.")
        if self.decision == "approve" and self.reason:
            raise ConfigError(f"reason={self.reason!r} is told to nobody with decision: approve. Remove it.")
        if self.text is not None:
            try:
                re.compile(self.text)
            except re.error as error:
                raise ConfigError(f"text={self.text!r} is no regular expression: {error}.") from error

    def applies(self, target: ActionTarget, action: str) -> bool:
        """Return True if all conditions hold for an action."""
        if ANY not in self.actions and target.name not in self.actions:
            return False
        if self.text is not None and not re.search(self.text, action, re.IGNORECASE):
            return False
        if not self.elements:
            return True
        if target.element is None:
            return self.decision != "approve"
        words = " ".join(target.element.split()).casefold()
        return any(" ".join(element.split()).casefold() in words for element in self.elements)


@settings_class(frozen=True, config=STRICT)
class RuleList:
    """Content of the YAML file of an approval policy.

    Attributes:
        rules: rules, of which the first that applies decides. An action that none applies to is rejected.
    """

    rules: Sequence[Any]


def read_rules(path: str, key: str, env: EnvAdapter) -> list[Rule]:
    """Read the YAML file of an approval policy.

    Args:
        path: path of the file.
        key: setting that names it, for messages.
        env: environment whose actions the rules name.

    Raises:
        ConfigError: the file cannot be read, a rule is not allowed, or it names an action that `env` does not have.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{key}={path!r} cannot be read: {error}") from error
    rules = section(key, RuleList, content).rules
    if not rules:
        raise ConfigError(f"{key}={path!r} has no rule, so that every action would be rejected. Add rules.")
    known, read = action_names(env.action_format), []
    for number, values in enumerate(rules, start=1):
        name = f"{key}.rules[{number}]"
        try:
            rule = section(name, Rule, values)
        except ConfigError as error:
            raise ConfigError(str(error) if str(error).startswith(name) else f"{name}: {error}") from error
        for action in rule.actions:
            if action != ANY and action not in known:
                raise ConfigError(
                    f"{name}.actions has {action!r}, which is no action of {type(env).__name__}. "
                    f"{did_you_mean(action, [*known, ANY])}"
                )
        read.append(rule)
    return read


def asks_person(rules: Sequence[Rule]) -> bool:
    """Return True if a rule asks a person."""
    return any(rule.by == "human" for rule in rules)


class Approval(Overseer):
    """Overseer that decides by the first rule that applies; an action that none applies to is rejected.

    Args:
        rules: rules in order.
        describe: returns name and element of an action from the action and the last observation.
        person: person whom rules ask; None if no rule does, or none may be asked.
    """

    def __init__(
        self, rules: Sequence[Rule], describe: Callable[[str, str], ActionTarget], person: Person | None = None
    ) -> None:
        self._rules, self._describe, self._person = rules, describe, person

    @property
    def asks_person(self) -> bool:
        """True if a rule asks a person."""
        return asks_person(self._rules)

    @asynccontextmanager
    async def watch(self, episode: Episode) -> AsyncIterator[None]:
        """See `Overseer`."""
        async with (self._person or Overseer()).watch(episode):
            yield

    async def act(self, proposal: Proposal) -> Decision | None:
        """See `Overseer`; the person's own actions are not matched with the rules."""
        return None if self._person is None else await self._person.act(proposal)

    async def review(self, proposal: Proposal) -> Decision | None:
        """See `Overseer`; a reply without an action passes, because it does not reach the environment."""
        if proposal.action is None:
            return None
        decided = self.decide(proposal.action, proposal.observation)
        return Decision(decided) if isinstance(decided, Review) else await self._ask(decided, proposal)

    def decide(self, action: str, observation: str) -> Review | Rule:
        """Return the decision on an action, or the rule that asks a person."""
        number, rule = self.match(action, observation)
        if rule is None:
            return Review("rejected", "rule", NOT_LISTED)
        if rule.by == "human":
            return rule
        if rule.decision == "approve":
            return Review("approved", "rule", f"rule {number}")
        return Review("rejected", "rule", rule.reason or f"rule {number} of the approval policy forbids it.")

    def match(self, action: str, observation: str) -> tuple[int, Rule | None]:
        """Return number and rule that decides on an action; 0 and None if no rule applies."""
        target = self._describe(action, observation)
        matches = ((number, rule) for number, rule in enumerate(self._rules, 1) if rule.applies(target, action))
        return next(matches, (0, None))

    async def _ask(self, rule: Rule, proposal: Proposal) -> Decision | None:
        if self._person is None:
            return Decision(Review("rejected", "rule", "a person has to decide, and there is none."))
        limit = asyncio.timeout(rule.timeout_s)
        try:
            async with limit:
                return await self._person.review(proposal)
        except TimeoutError:
            if not limit.expired():
                raise
            waited = f"a person has to decide, and nobody did within {rule.timeout_s:g} s."
            return Decision(Review("rejected", "rule", waited))
