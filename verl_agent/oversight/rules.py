"""Rules of approval policies: the actions that each one is about, and who decides on them."""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field
from pydantic.dataclasses import dataclass as settings_class

from verl_agent.envs.action_target import ActionTarget, action_names, casefolded, looks
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.options import check_options
from verl_agent.errors import ConfigError, describe_exception, did_you_mean
from verl_agent.oversight.base import Overseer
from verl_agent.registry import load_class
from verl_agent.sections import STRICT, section
from verl_agent.values import read_plain_yaml

ENTRY_POINT_GROUP = "verl_agent.overseers"
RULE, HUMAN = "rule", "human"
"""Values of `by` that need no entry point: the rule itself, and a person."""
ANY = "*"
"""Every action, in `actions` of a rule."""


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
    by: str = RULE
    """`rule` decides by `decision`, `human` asks a person, and the name of an overseer of another package asks that."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of an overseer of another package."""
    decision: Literal["approve", "reject"] | None = None
    """`approve` or `reject`, for `by: rule`."""
    reason: str = ""
    """Explanation that the agent reads after a rejection."""
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds after which a question to a person or to another overseer is answered by a rejection; null for no limit.
    """

    def __post_init__(self) -> None:
        if not self.actions:
            raise ConfigError("actions=[] matches nothing. Name actions, or '*' for all.")
        if self.asks and (self.decision or self.reason):
            whose = "person's" if self.by == HUMAN else "overseer's"
            raise ConfigError(f"decision and reason are the {whose} with by: {self.by}. Remove them, or set by: rule.")
        if not self.asks and self.decision is None:
            raise ConfigError("decision is missing. Allowed: approve, reject; or set by: human.")
        if not self.asks and self.timeout_s is not None:
            raise ConfigError(f"timeout_s={self.timeout_s:g} has no effect with by: rule. Remove it.")
        if self.by in (RULE, HUMAN) and self.options:
            raise ConfigError(f"options={dict(self.options)!r} has no effect with by: {self.by}. Remove it.")
        if self.decision == "approve" and self.reason:
            raise ConfigError(f"reason={self.reason!r} is told to nobody with decision: approve. Remove it.")
        if self.text is not None:
            try:
                re.compile(self.text)
            except re.error as error:
                raise ConfigError(f"text={self.text!r} is no regular expression: {error}.") from error

    @property
    def asks(self) -> bool:
        """True if the rule asks a person or another overseer."""
        return self.by != RULE

    @property
    def who(self) -> str:
        """Name of who is asked, for messages."""
        return "a person" if self.by == HUMAN else self.by

    def overseer(self, key: str) -> Overseer:
        """Return a new overseer of another package, which the rule asks.

        Args:
            key: key of the rule, for messages.

        Raises:
            ConfigError: it is not registered, or refuses its options.
        """
        kind = load_class(ENTRY_POINT_GROUP, self.by, f"{key}.by", Overseer, (RULE, HUMAN))
        check_options(f"{key}.options", kind, self.options)
        if not inspect.iscoroutinefunction(inspect.unwrap(kind.decide)):
            raise ConfigError(f"{key}.by={self.by!r}: {kind.__name__}.decide is not `async def`.")
        if inspect.iscoroutinefunction(kind.watch) or inspect.isasyncgenfunction(kind.watch):
            raise ConfigError(f"{key}.by={self.by!r}: {kind.__name__}.watch is no @asynccontextmanager.")
        try:
            return kind(**self.options)
        except Exception as error:  # boundary: the constructor is the author's code
            text = str(error) if isinstance(error, ConfigError) else describe_exception(error)
            raise ConfigError(f"{key}.options of {self.by!r}: {text}") from error

    def describe(self) -> str:
        """Return the conditions in one line."""
        parts = [f"actions {', '.join(self.actions)}"]
        parts += [f"elements {', '.join(self.elements)}"] if self.elements else []
        return "; ".join([*parts, *([f"text {self.text!r}"] if self.text is not None else [])])

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
        content = read_plain_yaml(Path(path))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        problem = ", ".join(text for text in (error.problem, error.context) if text)
        raise ConfigError(
            f"{key}={path!r} is not valid YAML{at}: {problem}. Check brackets and indentation."
        ) from error
    except (ConfigError, yaml.YAMLError) as error:
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
        if rule.by not in (RULE, HUMAN):
            rule.overseer(name)
        read.append(rule)
    return read


def asks_person(rules: Sequence[Rule]) -> bool:
    """Return True if a rule asks a person."""
    return any(rule.by == HUMAN for rule in rules)
