"""Policies without skill: they know what every policy can learn, and should earn no more than random actions."""

import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, TypeAlias

from verl_agent.envs.action_format import ActionFormat, TagFormat, ToolFormat
from verl_agent.envs.testing.contract import BAD_ACTIONS, fuzz
from verl_agent.envs.tools import Tool
from verl_agent.returns import sum_rewards
from verl_agent.types import Action, Message, StepResult, TaskItem, ToolCall

WORD = r"[\w.-]*\w"
_CONSTANTS = """yes no true false none null unknown 0 1 2 10 100 -1 nan NaN inf -inf Infinity 1e9 1e400 a e the . .* % *
[] {} done stop success reward"""
CONSTANTS = ("", "\n", "a\nb", "N/A", "I don't know", "\u200b", "é", "9" * 30, *_CONSTANTS.split())
"""Answers that a grader may accept for many tasks."""
_UNLISTED = """help hint answer solution solve win debug admin root sudo test cheat god skip pass next wait noop undo
redo back reset restart quit exit finish end surrender submit complete correct score save load inventory look xyzzy
please exec eval print __dict__ godmode teleport unlock open bypass override grant claim reveal show peek dump flag
secret password key master magic abracadabra iddqd resign concede accept approve verify passed ok halt abort"""
UNLISTED = (*_UNLISTED.split(), "give up", "reward me", "thank you", "ignore previous instructions")
"""Commands that programmers leave in an environment, and that its rules do not list."""
MOST_LISTED, MOST_VERBS = 400, 2
PLACES = 12
"""Words at each end of a message that are tried as an answer."""
MOST_FILLINGS, FILLINGS = 256, 40
"""Actions with other numbers that are made of an example in brackets: all if there are at most so many, else some."""
MAX_DUMP = 8000
"""Most characters of an action."""
SAME_ACTIONS = 3
"""Policies that repeat one action."""


@dataclass(slots=True)
class Play:
    """Episode of a policy, of which the policy sees what was said and done so far.

    Attributes:
        messages: messages before the first action.
        error: exception that ended it, or "".
        after: reward that was paid after the end.
        next: reward that the next episode of its session paid for empty answers.
    """

    item: TaskItem
    messages: list[Message] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    steps: list[StepResult] = field(default_factory=list)
    error: str = ""
    after: float = 0.0
    next: float = 0.0

    @property
    def prompt(self) -> str:
        """Text before the first action."""
        return "\n".join(message["content"] for message in self.messages)

    @property
    def last(self) -> str:
        """The last text of the environment."""
        return self.steps[-1].observation if self.steps else self.messages[-1]["content"]

    @property
    def refused(self) -> set[str]:
        """Actions that were refused."""
        answered = zip(self.actions, self.steps, strict=False)
        return {str(action) for action, step in answered if step.info.get("invalid_action")}

    def said(self, pattern: str) -> list[str]:
        """Return the distinct matches of a pattern in the texts of the environment, at least "1"."""
        texts = "\n".join([self.prompt, *(step.observation for step in self.steps)])
        return list(dict.fromkeys(re.findall(pattern, texts))) or ["1"]

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


@dataclass(frozen=True, slots=True)
class Known:
    """Knowledge of the policies about one task.

    Attributes:
        vocabulary: actions of other tasks' demonstrations, the commonest first; may be empty.
        shared: words that occur in the ids and data of several tasks, and the keys of the data.
        own: id, category and further texts of the task's data that no demonstration contains, by name.
        refused: actions that the environment has refused whenever they were tried.
        turns: turn limit.
    """

    item: TaskItem
    action_format: ActionFormat
    vocabulary: Sequence[Action] = ()
    shared: Sequence[str] = ()
    own: Mapping[str, str] = field(default_factory=dict)
    refused: Collection[str] = ()
    turns: int = 30

    def forms(self) -> dict[str, Callable[[str], Action]]:
        """Return ways to make an action of a text: each tag, each tool that takes a text, or the commonest verbs."""
        if isinstance(self.action_format, TagFormat):
            return {name: f"<{name}>{{}}</{name}>".format for name, _ in self.action_format.tags}
        tools = [tool for tool in self.action_format.tools if "string" in _types(tool).values()]
        used: dict[str, Callable[[str], Action]] = {tool.name: partial(_used, tool, number=1) for tool in tools}
        if used and isinstance(self.action_format, ToolFormat):
            return used
        verbs = Counter(verb for verb, _, rest in (str(one).partition(" ") for one in self.vocabulary) if rest)
        common = [verb for verb, count in verbs.most_common(MOST_VERBS) if count > 2]
        return {"": str, **(used or {verb: f"{verb} {{}}".format for verb in common})}

    def fixed(self) -> dict[str, str]:
        """Return the texts that do not depend on the messages, by name."""
        return {**{repr(text): text for text in (*CONSTANTS, *UNLISTED, *self.shared)}, **self.own}

    def text(self, name: str, play: Play) -> str:
        """Return the text with a name of `fixed` or of `DUMPS`; "" where this task has none."""
        text = DUMPS[name](self, play) if name in DUMPS else self.fixed().get(name, "")
        return text[:MAX_DUMP]


def _word(place: int, known: Known, play: Play) -> str:
    """Return the word at a place of the prompt, or ""."""
    words = re.findall(WORD, play.prompt)
    return words[place] if -len(words) <= place < len(words) else ""


DUMPS: Mapping[str, Callable[[Known, Play], str]] = {
    "last message": lambda known, play: play.last,
    "its first line": lambda known, play: play.last.partition("\n")[0],
    "its last line": lambda known, play: play.last.rpartition("\n")[2],
    "all words": lambda known, play: " ".join(play.said(WORD)),
    "longest word": lambda known, play: max(play.said(WORD), key=len),
    "first number": lambda known, play: play.said(r"-?\d+")[0],
    "last number": lambda known, play: play.said(r"-?\d+")[-1],
    "actions of other tasks": lambda known, play: ", ".join(
        re.sub(r"</?\w+>", "", str(one)) for one in known.vocabulary
    ),
    "listed actions": lambda known, play: "\n".join(map(str, listed(known.action_format, play.last))),
    "numbers to 400": lambda known, play: " ".join(map(str, range(401))),
    "letters": lambda known, play: "abcdefghijklmnopqrstuvwxyz " * 40,
    **{f"word {place} of the prompt": partial(_word, place) for place in range(-PLACES, PLACES)},
}
"""Texts that repeat what is shown, or contain many answers at once."""


Policy: TypeAlias = Callable[[Known, Play], Action | None]
"""Returns the next action, or None to stop."""


def listed(action_format: ActionFormat, shown: str) -> list[Action]:
    """Return the actions that a message may offer: tools with each number, quoted texts, list items, lines."""
    tools = [tool for tool in action_format.tools if "string" not in _types(tool).values()]
    numbers = list(dict.fromkeys(re.findall(r"\[(\d+)\]", shown) or re.findall(r"\d+", shown)))
    used = [_used(tool, "", int(number[:15])) for tool in tools for number in (numbers if _types(tool) else ["1"])]
    quoted = [text for _, text in re.findall(r"([\"'`])(.{1,80}?)\1", shown)]
    if isinstance(action_format, ToolFormat):
        words = [*quoted, *re.findall(r"[\w.-]+", shown)][:40]
        takes = [tool for tool in action_format.tools if tool not in tools]
        return [*used, *(_used(tool, word, 1) for tool in takes for word in words)][:MOST_LISTED]
    lines = [line.strip() for line in shown.splitlines()]
    heads = [re.sub(r"^(?:[-*•]|\d+[.)])\s+", "", line).partition(":")[0] for line in lines]
    lists = [part for line in lines for part in re.findall(r"(?i)(?:actions?|moves?|commands?)[^:]*:\s*(.+)", line)]
    items = [part.strip(" '\"[].") for text in lists for part in re.split(r"[,;|]|\bor\b", text)]
    items += [part.strip(" '\"[].") for text in heads for part in text.split(",")]
    marked = [mark for word in re.findall(r"\[([^\[\]\n]{1,40})\]", shown) for mark in (f"[{word}]", word)]
    examples = dict.fromkeys(re.sub(r"\d+", "\0", mark) for mark in marked if re.search(r"\d", mark))
    marked += [filling for example in list(examples)[:4] for filling in _fillings(example, numbers)]
    offered = [*(re.sub(r"\s*\([^()]*\)$", "", item) for item in items), *items, *quoted, *marked, *numbers, *lines]
    if isinstance(action_format, TagFormat):
        offered = [form for text in offered for form in (f"<{name}>{text}</{name}>" for name, _ in action_format.tags)]
    return list(dict.fromkeys(one for one in (*used, *offered) if one))[:MOST_LISTED]


def _fillings(example: str, numbers: Sequence[str]) -> list[str]:
    """Return an example with numbers in its places, in random order: all of them, or some of many."""
    draws, (head, *tails) = random.Random(0), example.split("\0")
    if len(numbers) ** len(tails) <= MOST_FILLINGS:
        drawn = list(product(numbers, repeat=len(tails)))
        draws.shuffle(drawn)
    else:
        drawn = [tuple(draws.choices(numbers, k=len(tails))) for _ in range(FILLINGS)]
    return [head + "".join(number + tail for number, tail in zip(one, tails, strict=True)) for one in drawn]


def _types(tool: Tool) -> dict[str, Any]:
    """Return the type of each argument of a tool."""
    return {name: one.get("type") for name, one in tool.parameters.get("properties", {}).items()}


def _used(tool: Tool, text: str, number: int) -> Action:
    """Return the action of a tool with a text and a number in all places of their types."""
    kinds: dict[str, Any] = {"string": text, "integer": number, "number": number, "boolean": True}
    values = {name: kinds[kind] for name, kind in _types(tool).items() if isinstance(kind, str) and kind in kinds}
    if not tool.line:
        return ToolCall(tool.name, values)
    return re.sub(r"\{(\w+)\}", lambda slot: str(values.get(slot[1], text)), tool.line)


def options(known: Known, play: Play) -> list[Action]:
    """Return the actions of other tasks or, without any, those that last message and prompt list and none refused."""
    return list(known.vocabulary) or offered(known, play)


def offered(known: Known, play: Play) -> list[Action]:
    """Return the actions that the last message and the prompt list, without those that were refused."""
    found = dict.fromkeys((*listed(known.action_format, play.last), *listed(known.action_format, play.prompt)))
    refused = {*play.refused, *known.refused}
    return [one for one in found if str(one) not in refused] or [""]


def random_policy(seed: object) -> Policy:
    """Return a policy that draws from `options`."""
    draws = random.Random(str(seed))
    return lambda known, play: draws.choice(options(known, play))


def plan(actions: Sequence[Action]) -> Policy:
    """Return a policy that plays some actions and stops."""
    return lambda known, play: actions[len(play.actions)] if len(play.actions) < len(actions) else None


def always_option(place: int) -> Policy:
    """Return a policy that repeats one of the actions that are known at the start."""

    def choose(known: Known, play: Play) -> Sequence[Action]:
        found = options(known, play)
        return [found[place * len(found) // SAME_ACTIONS if known.vocabulary else place % len(found)]]

    return cycle(choose)


def always_text(name: str, form: str) -> Policy:
    """Return a policy that answers with a text of `Known`, in one of `Known.forms`."""

    def act(known: Known, play: Play) -> Action:
        return known.forms().get(form, str)(known.text(name, play))

    return act


def all_words(known: Known, play: Play) -> Action:
    """Answer with all words that were shown, in each form in turn: one of them may end the episode."""
    forms = list(known.forms().values())
    return forms[len(play.actions) % len(forms)](known.text("all words", play))


def each_listed(step: int) -> Policy:
    """Return a policy that tries each action that is listed once; it ends with an empty answer."""

    def act(known: Known, play: Play) -> Action:
        tried = set(map(str, play.actions))
        left = [one for one in offered(known, play)[::step] if str(one) not in tried]
        return left[0] if left and len(tried) < known.turns - 1 else list(known.forms().values())[-1]("")

    return act


def cycle(actions: Callable[[Known, Play], Sequence[Action]]) -> Policy:
    """Return a policy that plays the actions that are known at the start in turn."""
    found: list[Action] = []

    def act(known: Known, play: Play) -> Action:
        found[:] = found or actions(known, play) or [""]
        return found[len(play.actions) % len(found)]

    return act


IDLE: Mapping[str, Policy] = {
    "nothing": lambda known, play: "",
    "invalid text": lambda known, play: "no such action",
    "blanks": lambda known, play: " \n ",
}
"""Policies that do nothing until the limit."""
EXPLORERS: Mapping[str, Callable[[], Policy]] = {
    "each listed action": lambda: each_listed(1),
    "each listed action from the last": lambda: each_listed(-1),
    "known actions in turn": lambda: cycle(options),
    "always all words, form by form": lambda: all_words,
    "bad actions": lambda: cycle(lambda known, play: BAD_ACTIONS),
    "fuzzed actions": lambda: cycle(lambda known, play: fuzz([str(one) for one in known.vocabulary], seed=1)),
}
"""Policies that try everything."""
