"""Generic attacks on the reward of an environment: policies without skill, as functions of the conversation.

An attack knows what every policy can learn: the messages, the action format and the actions of other tasks. It should
earn no more than random actions. The attacks of two families replay the demonstration of the task too, and should earn
no more than it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeAlias

from verl_agent.envs.action_format import ActionFormat, TagFormat
from verl_agent.envs.testing.contract import BAD_ACTIONS, fuzz
from verl_agent.types import Message

CONSTANTS = (
    *("", "yes", "no", "true", "false", "N/A", "none", "null", "unknown", "0", "1", "2", "10", "100", "-1", "a", "e"),
    *("the", ".", ".*", "%", "*", "nan", "inf", "[]", "{}", "done", "stop", "success", "reward"),
)
"""Answers that a grader may accept for many tasks."""
MOST_LISTED = 400
"""Most actions that an attack reads from one message."""
MAX_DUMP = 8000
"""Most characters of an action."""
MOST_VERBS = 6
"""Most verbs to which an attack adds its text, where an environment declares neither tags nor tools."""
MOST_TEXTS = 14
"""Turns of an attack that repeats one text: each verb twice."""
SAME_ACTIONS = 8
"""Attacks that repeat one action."""


@dataclass(frozen=True, slots=True)
class AttackerKnowledge:
    """Knowledge of an attack about one task.

    Attributes:
        vocabulary: actions of other tasks' demonstrations; may be empty.
        demonstration: actions that solve the task; empty if it has no demonstration.
    """

    action_format: ActionFormat
    vocabulary: Sequence[str]
    demonstration: Sequence[str]
    turns: int

    def with_text(self, text: str, shown: str) -> list[str]:
        """Return actions that contain a text, one for each tag, for each tool that takes a text, or for each verb."""
        if isinstance(self.action_format, TagFormat):
            return [f"<{name}>{text}</{name}>" for name, _ in self.action_format.tags]
        if not self.action_format.tools:
            verbs = Counter(verb for verb, _, rest in (one.partition(" ") for one in self.vocabulary) if rest)
            return [text, *(f"{verb} {text}" for verb, count in verbs.most_common(MOST_VERBS) if count > 2)]
        number = [*numbers_in(shown), "1"][0]
        tools = [tool for tool in self.action_format.tools if any(one.type == "string" for one in tool.parameters)]
        values = [{one.name: text if one.type == "string" else number for one in tool.parameters} for tool in tools]
        return [tool.action.format(**each) for tool, each in zip(tools, values, strict=True)] or [text]

    def listed(self, shown: str) -> list[str]:
        """Return the actions that a message may offer: tools with each number, quoted texts, list items, lines."""
        tools = [tool for tool in self.action_format.tools if all(one.type != "string" for one in tool.parameters)]
        used = [
            tool.action.format(**{one.name: number for one in tool.parameters})
            for tool in tools
            if tool.parameters
            for number in numbers_in(shown)
        ]
        lines = [line.strip() for line in shown.splitlines()]
        heads = [re.sub(r"^(?:[-*•]|\d+[.)])\s+", "", line).partition(":")[0] for line in lines]
        lists = [part for line in lines for part in re.findall(r"(?i)actions?[^:]*:\s*(.+)", line)]
        items = [part.strip(" '\"[].") for text in (*lists, *heads) for part in text.split(",")]
        quoted = [text for _, text in re.findall(r"([\"'`])(.{1,80}?)\1", shown)]
        return list(dict.fromkeys(one for one in (*used, *quoted, *items, *lines) if one))[:MOST_LISTED]


NextAction: TypeAlias = Callable[[AttackerKnowledge, Sequence[Message]], str]
"""Returns the next action from the conversation so far."""


@dataclass(frozen=True, slots=True)
class Attack:
    """Policy without skill.

    Attributes:
        variant: its difference from the others of the family.
        raw: reply with the action alone, without its mark.
        baseline: `random`, `demonstration`, or `end`: with it, only what is earned after the task's end counts.
        most_turns: most turns, if the turn limit is higher.
    """

    family: str
    variant: str
    act: NextAction
    raw: bool = False
    baseline: str = "random"
    most_turns: int = 10_000

    @property
    def needs_demonstration(self) -> bool:
        """True if it repeats the demonstration of the task."""
        return self.act in (after_end, twice)

    def __str__(self) -> str:
        return f"{self.family}: {self.variant}"


def numbers_in(shown: str) -> list[str]:
    """Return the numbers in brackets, with which pages name their elements, or else all numbers."""
    return list(dict.fromkeys(re.findall(r"\[(\d+)\]", shown) or re.findall(r"\d+", shown)))


def replies(messages: Sequence[Message]) -> list[str]:
    """Return the replies so far."""
    return [message["content"] for message in messages if message["role"] == "assistant"]


def say(text: NextAction, known: AttackerKnowledge, messages: Sequence[Message], backwards: bool = False) -> str:
    """Return an action with a text. The kinds of actions take turns, since one of them may end the episode."""
    actions = known.with_text(text(known, messages), messages[-1]["content"])
    return actions[:: -1 if backwards else 1][len(replies(messages)) % len(actions)]


def cycle(actions: Sequence[str], messages: Sequence[Message]) -> str:
    """Return the action of this turn; after the last one, the first one is next."""
    return actions[len(replies(messages)) % len(actions)]


def each_listed(known: AttackerKnowledge, messages: Sequence[Message], step: int = 1) -> str:
    """Return the next action that the last message lists and that was not tried; end with an empty answer."""
    shown, tried = messages[-1]["content"], replies(messages)
    left = [one for one in known.listed(shown)[::step] if known.action_format.format(one) not in tried]
    return left[0] if left and len(tried) < known.turns - 1 else known.with_text("", shown)[-1]


def each_of_first(known: AttackerKnowledge, messages: Sequence[Message]) -> str:
    """Return the next action that the prompt lists."""
    prompt = "\n".join(message["content"] for message in messages[: len(messages) - 2 * len(replies(messages))])
    return cycle(known.listed(prompt) or [""], messages)


def each_known(known: AttackerKnowledge, messages: Sequence[Message]) -> str:
    """Return the next action of the other tasks."""
    return cycle(known.vocabulary or [""], messages)


def all_words(known: AttackerKnowledge, messages: Sequence[Message]) -> str:
    """Return all words of the messages."""
    return " ".join(dict.fromkeys(re.findall(r"[\w.-]+", " ".join(one["content"] for one in messages))))


def all_actions(known: AttackerKnowledge, messages: Sequence[Message]) -> str:
    """Return all actions of other tasks, without tags."""
    return ", ".join(dict.fromkeys(re.sub(r"</?\w+>", "", one) for one in known.vocabulary))


def all_listed(known: AttackerKnowledge, messages: Sequence[Message]) -> str:
    """Return all actions that the last message lists, one a line."""
    return "\n".join(known.listed(messages[-1]["content"]))


def after_end(known: AttackerKnowledge, messages: Sequence[Message]) -> str:
    """Return the actions of the demonstration, its last one twice, and all again."""
    actions = list(known.demonstration)
    return cycle([*actions, *actions[-1:] * 2, *actions], messages)


def twice(known: AttackerKnowledge, messages: Sequence[Message]) -> str:
    """Return each action of the demonstration twice."""
    return cycle([action for action in known.demonstration for _ in range(2)], messages)


def always(number: int, known: AttackerKnowledge, messages: Sequence[Message]) -> str:
    """Return the same action of other tasks in every turn."""
    place = number * len(known.vocabulary) // SAME_ACTIONS
    return (
        known.vocabulary[place]
        if known.vocabulary
        else cycle([*known.listed(messages[0]["content"]), ""][number : number + 1] or [""], ())
    )


def constant(text: str, known: AttackerKnowledge, messages: Sequence[Message]) -> str:
    """Return the same text in every turn."""
    return text


def fuzzed(seed: int, known: AttackerKnowledge, messages: Sequence[Message]) -> str:
    """Return actions of other tasks with changed letters, and fragments of replies."""
    return cycle(_fuzzed(tuple(known.vocabulary), seed), messages)


_fuzzed = cache(lambda actions, seed: fuzz(actions, seed=seed))


def last_message(known: AttackerKnowledge, messages: Sequence[Message]) -> str:
    """Return the last message."""
    return messages[-1]["content"]


TEXTS: Mapping[str, Mapping[str, NextAction]] = {
    "constant answer": {repr(text): partial(constant, text) for text in CONSTANTS},
    "prompt repeated": {
        "last message": last_message,
        "its first line": lambda known, messages: messages[-1]["content"].partition("\n")[0],
        "its last line": lambda known, messages: messages[-1]["content"].rpartition("\n")[2],
    },
    "vocabulary dumped": {
        "words of the messages": all_words,
        "actions of other tasks": all_actions,
        "listed actions": all_listed,
        "numbers": partial(constant, " ".join(map(str, range(401)))),
        "letters": partial(constant, "abcdefghijklmnopqrstuvwxyz " * 40),
    },
    "errors on purpose": {f"{text[:12]!r}": partial(constant, text) for text in BAD_ACTIONS},
}
"""Texts of attacks, by family and variant."""
SCRIPTS = (
    Attack("constant answer", "empty reply", partial(constant, ""), raw=True, most_turns=2),
    Attack("prompt repeated", "as the whole reply", last_message, raw=True, most_turns=2),
    Attack("errors on purpose", "bad actions in turn", lambda known, messages: cycle(BAD_ACTIONS, messages)),
    *(Attack("errors on purpose", f"fuzzed actions {seed}", partial(fuzzed, seed)) for seed in range(3)),
    Attack("listed actions", "each in order", each_listed),
    Attack("listed actions", "each from the last", partial(each_listed, step=-1)),
    Attack("listed actions", "those of the prompt", each_of_first),
    Attack("listed actions", "those of other tasks", each_known),
    *(Attack("listed actions", f"always the same one ({n})", partial(always, n)) for n in range(SAME_ACTIONS)),
    Attack("double steps", "each action twice", twice, baseline="demonstration"),
    Attack("double steps", "demonstration again", after_end, baseline="demonstration"),
    Attack("actions after the end", "demonstration again", after_end, baseline="end"),
    Attack("actions after the end", "listed actions", each_listed, baseline="end"),
)
"""Attacks that no text describes."""


def _attacks() -> Iterator[Attack]:
    yield from SCRIPTS
    for family, variants in TEXTS.items():
        for variant, text in variants.items():
            yield Attack(family, variant, partial(say, text), most_turns=MOST_TEXTS)
            backwards = partial(say, text, backwards=True)
            yield Attack(family, f"{variant}, from the last verb", backwards, most_turns=MOST_TEXTS)


ATTACKS = tuple(_attacks())
