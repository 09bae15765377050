"""Table of the behaviors that are counted in every episode of every environment, and their computation."""

import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from verl_agent.actions import action_text
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.turn_record import TurnRecord, to_turn_record, turn_text
from verl_agent.types import Episode, StopReason

OVER_INTERACTION = "over_interaction"
"""Name of the only behavior that not every environment can show; see `EnvAdapter.oracle_turns`."""
MAX_CYCLE = 4
"""Length of the longest cycle of actions that counts as a loop."""
_GIVES_UP = re.compile(r"(?:give up|quit)\b|stop\b\W*(?:N/?A\W*)?\Z", re.IGNORECASE)
_TURNS_LEFT = re.compile(r"\s*\bturns left: [\d/ ]+\Z", re.IGNORECASE)
"""Number of turns left at the end of an observation, which changes with each turn."""
_ACTION_BEGINS = re.compile(r"^[\s>#*_-]*action[\s*_]*:|`{3}|<(?!/?\s*think)[\w ]+>", re.IGNORECASE | re.MULTILINE)
"""Marks of an action in the formats of agents: `Action:`, triple backticks, a tag."""
_ENV_LABELS = frozenset({"observation", "environment", "user", "instruction", "feedback", "obs"})
_LABEL_ENDS, _LONGEST = tuple(_ENV_LABELS), max(map(len, _ENV_LABELS))


MOST_MARKS = 60
"""Characters before an action in which the marks that begin it are searched."""
_OPENING = re.compile(
    r"(?:(?<![^\W_])[*_]{0,3}action[\s*_]{0,9}:[*_]{0,3}[ \t]*|<[a-z_]+>\s*|`{1,5}(?:\w+\n|\n)?)+\Z", re.IGNORECASE
)
_CLOSING = re.compile(r"\A(?:\s*(?:</[a-z_]+>|`{1,5}|[*_]{1,3}))+\s*", re.IGNORECASE)
"""Marks of `Action:`, of tags and of fences around an action, see `verl_agent.envs.parsing`."""


@dataclass(frozen=True)
class Played:
    """Turns of one episode, prepared for the rules of this module.

    Attributes:
        first_observation: text that the environment showed before the first turn.
        oracle_turns: number of actions with which an oracle solves the task; None if none is known.
    """

    turns: Sequence[TurnRecord]
    first_observation: str = ""
    stop: str = StopReason.TERMINATED
    success: bool = False
    oracle_turns: int | None = None

    @classmethod
    def from_record(cls, record: EpisodeRecord) -> "Played":
        """Return the turns of a record."""
        prompt = record["messages"][: record["prompt_length"]]
        first = prompt[-1]["content"] if prompt else ""
        return cls(record["turns"], first, record["stop"], record["success"], record.get("oracle_turns"))

    @classmethod
    def from_episode(cls, episode: Episode) -> "Played":
        """Return the turns of an episode that is not recorded yet."""
        prompt = episode.messages[: episode.prompt_length]
        first = prompt[-1]["content"] if prompt else ""
        turns = [to_turn_record(turn) for turn in episode.turns]
        return cls(turns, first, str(episode.stop), episode.success, episode.oracle_turns)

    @cached_property
    def actions(self) -> list[str | None]:
        """Action of each turn with runs of white space as one space; None for a reply without an action."""
        texts = map(turn_text, self.turns)
        return [None if text is None else " ".join(text.split()) for text in texts]

    @cached_property
    def observations(self) -> list[str | None]:
        """Observation before the first turn and after each turn, so turn `t` leads from entry t to entry t + 1.

        The number of turns left at the end is removed.
        """
        texts = [self.first_observation, *(turn["observation"] for turn in self.turns)]
        return [None if text is None else _without_turns_left(text) for text in texts]

    def is_invalid(self, turn: int) -> bool:
        """Return True if the environment reports the turn's action as invalid."""
        return self.turns[turn]["info"].get("invalid_action", 0.0) > 0

    def thought_length(self, turn: int) -> int:
        """Return the number of characters of the reply outside its action and the marks around it."""
        reply, action = self.turns[turn]["reply"], action_text(self.turns[turn]["action"])
        if not action or action not in reply:
            return len(reply)
        before, _, after = reply.rpartition(action)
        return len(_OPENING.sub("", before[-MOST_MARKS:])) + len(before[:-MOST_MARKS]) + len(_CLOSING.sub("", after))


Rule = Callable[[Played, int], bool]


@dataclass(frozen=True, slots=True)
class Behavior:
    """Definition of one behavior.

    Attributes:
        name: name in filters and curves of the viewer.
        meaning: definition, as a condition on a turn.
        rule: function of the episode and the index of a turn, True where the turn shows the behavior.
    """

    name: str
    meaning: str
    rule: Rule = field(repr=False)


def _without_turns_left(text: str) -> str:
    before = text.rpartition(":")[0]  # nothing after the last colon is searched: the expression is slow on long text
    return _TURNS_LEFT.sub("", text) if before[-10:].lower() == "turns left" else text


def _may_have_label(text: str) -> bool:
    """Return True if a label of the environment stands before a colon; much faster than a look at each line."""
    return any(part.rstrip()[-_LONGEST:].lower().endswith(_LABEL_ENDS) for part in text.split(":")[:-1])


def _no_effect(played: Played, turn: int) -> bool:
    before, after = played.observations[turn], played.observations[turn + 1]
    changed = played.turns[turn]["reward"] or played.turns[turn]["terminated"]
    return played.actions[turn] is not None and not changed and after is not None and after == before


def _repeated(played: Played, turn: int) -> bool:
    return turn > 0 and played.actions[turn] is not None and played.actions[turn] == played.actions[turn - 1]


def _loop(played: Played, turn: int) -> bool:
    for length in range(2, MAX_CYCLE + 1):
        if turn + 1 < 2 * length:
            return False
        cycle = played.actions[turn + 1 - length : turn + 1]
        earlier = played.actions[turn + 1 - 2 * length : turn + 1 - length]
        if cycle == earlier and None not in cycle and len(set(cycle)) > 1:
            return True
    return False


def _back_and_forth(played: Played, turn: int) -> bool:
    if turn < 1:
        return False
    start, between, end = played.observations[turn - 1 : turn + 2]
    return end is not None and start == end and between is not None and between != end


def _gave_up(played: Played, turn: int) -> bool:
    last = turn == len(played.turns) - 1
    if played.success or not last:
        return False
    if played.turns[turn]["info"].get("gave_up", 0.0) > 0:
        return True
    action = played.actions[turn]
    return played.stop == StopReason.TERMINATED and action is not None and _GIVES_UP.match(action) is not None


def _truncated(played: Played, turn: int) -> bool:
    record = played.turns[turn]
    return record["truncated_by"] is not None or record.get("force_closed", False)


def _wrote_observation(played: Played, turn: int) -> bool:
    reply, action = played.turns[turn]["reply"], action_text(played.turns[turn]["action"])
    if not _may_have_label(reply):
        return False
    begin = _ACTION_BEGINS.search(reply)
    if begin is None and (action is None or action.strip() != reply.strip()):
        return False
    lines = (reply if begin is None else reply[begin.end() :]).splitlines()
    return any(line.partition(":")[0].strip().lower() in _ENV_LABELS for line in lines if ":" in line)


BEHAVIORS = (
    Behavior("invalid_action", "the environment reports the action as invalid", Played.is_invalid),
    Behavior("no_action", "the reply has no action", lambda played, turn: played.actions[turn] is None),
    Behavior("no_effect", "the observation is the same before and after the action, without reward", _no_effect),
    Behavior("repeated_action", "the action is the same as in the turn before", _repeated),
    Behavior("loop", "a cycle of two to four actions, not all equal, ends for the second time in a row", _loop),
    Behavior("back_and_forth", "the observation is that of two turns ago, unlike the one between", _back_and_forth),
    Behavior("truncated", "a token budget cut the reply", _truncated),
    Behavior(
        "gave_up",
        "the agent's last action was `stop` without an answer, `give up` or `quit`, without success",
        _gave_up,
    ),
    Behavior(
        "wrote_observation",
        "after the begin of an action, a line of the reply has a label of the environment, such as `Observation:`",
        _wrote_observation,
    ),
    Behavior(
        OVER_INTERACTION,
        "an oracle would have solved the task before this turn",
        lambda played, turn: played.oracle_turns is not None and turn >= played.oracle_turns,
    ),
)
"""Behaviors of turns. An episode shows one if one of its turns does."""


def behavior_turns(record: EpisodeRecord) -> dict[str, list[int]]:
    """Return the turns that show each behavior, by its name; behaviors without a turn are left out."""
    return turns_with_behaviors(Played.from_record(record))


def turns_with_behaviors(played: Played) -> dict[str, list[int]]:
    """Return the turns that show each behavior, by its name; behaviors without a turn are left out."""
    found = {rule.name: [turn for turn in range(len(played.turns)) if rule.rule(played, turn)] for rule in BEHAVIORS}
    return {name: turns for name, turns in found.items() if turns}


def thought_length(record: EpisodeRecord) -> float:
    """Return the mean number of characters that a reply has outside its action; 0 for an episode without turns."""
    return mean_thought_length(Played.from_record(record))


def mean_thought_length(played: Played) -> float:
    """Return `thought_length` of an episode whose turns are parsed."""
    turns = len(played.turns)
    return sum(map(played.thought_length, range(turns))) / turns if turns else 0.0


def first_divergence(episodes: Sequence[Sequence[str | None]]) -> int | None:
    """Return the first turn in which the actions of a group's episodes differ.

    Args:
        episodes: actions of each episode, by turn. An episode that has ended differs from one that goes on.

    Returns:
        Index of the turn, from 0; None if all episodes are equal.
    """
    ended = object()
    for turn in range(max(map(len, episodes), default=0)):
        if len({actions[turn] if turn < len(actions) else ended for actions in episodes}) > 1:
            return turn
    return None


def action_checksums(episode: Episode) -> str:
    """Return a checksum of the action of each turn, with a comma after each; "" for a reply without an action."""
    named = (
        None if turn.action is None else "\n".join(map(str, turn.actions or [turn.action])) for turn in episode.turns
    )
    texts = (None if text is None else text.encode(errors="replace") for text in named)
    return "".join("," if text is None else f"{zlib.crc32(text):x}," for text in texts)


def divergence_turns(groups: Iterable[Sequence[str]]) -> list[int]:
    """Return the first different turn, from 1, of each group with different actions.

    Args:
        groups: `action_checksums` of the episodes of each group.
    """
    found = (first_divergence([actions.split(",")[:-1] for actions in group]) for group in groups)
    return [turn + 1 for turn in found if turn is not None]
