"""Approval policies: ordered rules that decide which actions of an agent are carried out."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field
from pydantic.dataclasses import dataclass as settings_class
from typing_extensions import override

from verl_agent.envs.action_target import ActionTarget, action_names, casefolded, looks
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
    """One rule of an approval policy. It applies to an action if all of its conditions hold."""

    actions: Sequence[str]
    """Names of actions, such as `click`; `*` for all. A rule that approves must name every effect of an action
    (`ActionTarget.effects`). For other rules one of them suffices, and unknown actions match any name."""
    elements: Sequence[str] = field(default_factory=list)
    """Words or phrases, in any case; empty for every element. A rule that approves needs one of them as whole words in
    each name of the element, see `ActionTarget.elements`. For other rules a part of one name suffices, also one that
    only looks like it (`B u y`). Unknown elements match such rules, but a rule that rejects asks the person for them if
    the policy has rules that do."""
    text: str | None = None
    """Regular expression that the action as a whole contains, in any case, in the form in which the environment reads
    it; null for every action."""
    by: Literal["rule", "human"] = "rule"
    """`rule` decides by `decision`, `human` asks a person."""
    decision: Literal["approve", "reject"] | None = None
    """`approve` or `reject`, for `by: rule`."""
    reason: str = ""
    """Explanation that the agent reads after a rejection."""
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds after which a question to a person is answered by a rejection; null for no limit."""

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

    def applies(self, target: ActionTarget) -> bool:
        """Return True if all conditions hold for an action."""
        if self.text is not None and not re.search(self.text, target.text, re.IGNORECASE):
            return False
        if self.decision == "approve":
            return all(map(self._names, (target.name, *target.effects))) and self._approves(target.elements)
        if (not target.name or self._names(target.name)) and self._covers(target.elements):
            return True
        return any(map(self._names, target.effects))  # on an unknown element

    def _names(self, action: str) -> bool:
        return ANY in self.actions or action in self.actions

    def _approves(self, names: tuple[str, ...] | None) -> bool:
        """Return True if each name contains a phrase of `elements` as whole words."""
        if not self.elements:
            return True
        return bool(names) and all(
            any(
                re.search(rf"(?<!\w){re.escape(casefolded(phrase))}(?!\w)", casefolded(name))
                for phrase in self.elements
            )
            for name in names or ()
        )

    def _covers(self, names: tuple[str, ...] | None) -> bool:
        """Return True if a name contains what looks like a phrase of `elements`, or if the names are unknown."""
        if not self.elements or names is None:
            return True
        return any(_contains(name, phrase) for phrase in self.elements for name in names)

    def guesses(self, target: ActionTarget) -> bool:
        """Return True if this rule, which applies, may do so only because an element is unknown."""
        return bool(self.elements) and (
            target.elements is None or not (self._names(target.name) and self._covers(target.elements))
        )


def _contains(name: str, phrase: str) -> bool:
    return casefolded(phrase) in casefolded(name) or (bool(looks(phrase)) and looks(phrase) in looks(name))


@settings_class(frozen=True, config=STRICT)
class RuleList:
    """Content of the YAML file of an approval policy."""

    rules: Sequence[Any]
    """Rules, of which the first that applies decides. An action that none applies to is rejected."""


def read_rules(path: str, key: str, env: EnvAdapter) -> list[Rule]:
    """Read the YAML file of an approval policy.

    Raises:
        ConfigError: the file cannot be read, a rule is not allowed, or `env` lacks an action or the elements of a rule.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        problem = ", ".join(text for text in (error.problem, error.context) if text)
        raise ConfigError(
            f"{key}={path!r} is not valid YAML{at}: {problem}. Check brackets and indentation."
        ) from error
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
            text = str(error) if str(error).startswith(name) else f"{name}: {error}"
            hint = " Null, or no decision, is for by: human." if text.startswith(f"{name}.decision=") else ""
            if "=False is not allowed" in text or "=True is not allowed" in text:
                hint = " YAML reads words such as no and yes as booleans: put them in quotes."
            raise ConfigError(text + hint) from error
        for action in rule.actions:
            if action != ANY and action not in known:
                raise ConfigError(
                    f"{name}.actions has {action!r}, which is no action of {type(env).__name__}. "
                    f"{did_you_mean(action, [*known, ANY])}"
                )
        if rule.elements and not env.names_elements:
            raise ConfigError(
                f"{name}.elements={list(rule.elements)!r} never matches: actions of {type(env).__name__} have no "
                "elements. Remove it, or match the words of the action with text."
            )
        read.append(rule)
    return read


def asks_person(rules: Sequence[Rule]) -> bool:
    """Return True if a rule asks a person."""
    return any(rule.by == "human" for rule in rules)


class Approval(Overseer):
    """Overseer that decides by the first rule that applies; an action that none applies to is rejected.

    Args:
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

    @override
    @asynccontextmanager
    async def watch(self, episode: Episode) -> AsyncIterator[None]:
        async with (self._person or Overseer()).watch(episode):
            yield

    @override
    async def act(self, proposal: Proposal) -> Decision | None:
        """The person's own actions are not matched with the rules."""
        return None if self._person is None else await self._person.act(proposal)

    @override
    async def review(self, proposal: Proposal) -> Decision | None:
        """A reply without an action passes, because it does not reach the environment."""
        if proposal.action is None:
            return None
        decided = self.decide(proposal.action, proposal.env_observation)
        return Decision(decided) if isinstance(decided, Review) else await self._ask(decided, proposal)

    def decide(self, action: str, observation: str) -> Review | Rule:
        """Return the decision on an action, or the rule that asks a person."""
        number, rule = self.match(action, observation)
        if rule is None:
            return Review("rejected", "rule", NOT_LISTED)
        if rule.by == "human":
            return rule
        if rule.decision == "reject" and rule.guesses(self._describe(action, observation)):
            asking = (one for one in self._rules if one.by == "human")
            if (ask := next(asking, None)) is not None:
                return ask
        if rule.decision == "approve":
            return Review("approved", "rule", f"rule {number}")
        return Review("rejected", "rule", rule.reason or f"rule {number} of the approval policy forbids it.")

    def match(self, action: str, observation: str) -> tuple[int, Rule | None]:
        """Return number and rule that decides on an action; 0 and None if no rule applies."""
        target = self._describe(action, observation)
        matches = ((number, rule) for number, rule in enumerate(self._rules, 1) if rule.applies(target))
        return next(matches, (0, None))

    async def _ask(self, rule: Rule, proposal: Proposal) -> Decision | None:
        if self._person is None:
            return Decision(Review("rejected", "rule", "a person has to decide, and no person is asked in this run."))
        limit = asyncio.timeout(rule.timeout_s)
        try:
            async with limit:
                return await self._person.review(replace(proposal, timeout_s=rule.timeout_s))
        except TimeoutError:
            if not limit.expired():
                raise
            waited = f"a person has to decide, and nobody did within {rule.timeout_s:g} s."
            return Decision(Review("rejected", "rule", waited))
