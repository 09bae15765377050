"""Question to a person about a turn: the texts of others in frames, and the action exactly."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from verl_agent.envs.parsing import shorten
from verl_agent.errors import counted
from verl_agent.oversight.base import Proposal
from verl_agent.oversight.person import explain_commands
from verl_agent.types import Episode, Message
from verl_agent.visible import frame, is_plain, one_line, show_bytes

OURS = "── "
"""Beginning of every line of a question that is not the text of others."""
SHOWN_LINES = 30
"""Last lines of an observation that a question in a terminal shows."""
SHOWN_TURNS = 10
"""Last turns whose actions it lists."""
MOST_CHARS = 10_000
"""Characters of the observation and of the reply that it shows; the action is shown as a whole."""
SHORT = 60
"""Characters of a plain action that stands in the line of its heading."""
LONG_LINES = 20
"""Lines of an action from which its size and its beginning are repeated below it, where the person decides."""
NO_ACTION = "(none found)"
"""Text in place of an action that was not found."""
MAX_HISTORY, MAX_MESSAGE, MAX_PROMPT = 40, 2_000, 50_000
"""Last messages of the history that a page shows; characters of each, and of the goal and the rules."""


@dataclass(frozen=True, slots=True)
class Question:
    """Question about a turn in parts, also as JSON values: `text` has them for a terminal, a page lays them out.

    Attributes:
        turn: task, number of the turn and turn limit.
        prompt: goal and rules of the episode: its messages up to the first observation.
        played: actions of the turns before, a line each.
        history: messages after the prompt, the last ones; `earlier` is the number of those before.
        reply: reply of the policy; None if the person has the turn.
        action: its action exactly; None without one.
        commands: commands that suit the turn, see `Person.commands`; empty if nobody is asked.
    """

    turn: str
    prompt: str
    played: Sequence[str]
    history: Sequence[Message]
    earlier: int
    observation: str
    reply: str | None
    action: str | None
    candidates: Sequence[str]
    asked_by: str
    timeout_s: float | None
    commands: Sequence[str]

    @classmethod
    def about(cls, proposal: Proposal, commands: Sequence[str] = ()) -> Self:
        """Return the question about a turn."""
        episode, reply = proposal.episode, proposal.reply
        first = episode.messages[: episode.prompt_length if episode.turns else episode.prompt_length - 1]
        past = episode.messages[episode.prompt_length : -1]
        latest: list[Message] = [
            {"role": message["role"], "content": shorten(message["content"], MAX_MESSAGE)}
            for message in past[-MAX_HISTORY:]
        ]
        return cls(
            turn=f"{one_line(shorten(episode.item.id, 40))}, turn {len(episode.turns) + 1} of {episode.max_turns}",
            prompt=shorten("\n\n".join(message["content"].strip() for message in first), MAX_PROMPT),
            played=list(_played(episode)),
            history=latest,
            earlier=len(past) - len(latest),
            observation=proposal.observation,
            reply=None if reply is None else reply.text.strip(),
            action=proposal.action,
            candidates=[f"{one.share:4.0%}  {_exactly(str(one.action))}" for one in proposal.candidates],
            asked_by=one_line(proposal.asked_by),
            timeout_s=proposal.timeout_s,
            commands=commands,
        )

    def text(self, most_lines: int | None = SHOWN_LINES, told: bool = False) -> str:
        """Return rules, task, history, observation, reply, action, commands and time limit as lines for a terminal.

        Only the goal and the rules may stand without a frame, if they are plain ASCII, which has no `OURS`.

        Args:
            most_lines: most lines of the observation, the last ones; None for all, to a person who has seen all turns.
            told: True if the person has read the goal and the rules.
        """
        prompt = "" if told else self.prompt
        parts = ["", *([prompt if is_plain(prompt) else frame(prompt), ""] if prompt else [])]
        parts.append(f"{OURS}{one_line(self.turn)} ──")
        parts += [] if most_lines is None else self.played
        parts += _observation(self.observation, most_lines)
        if self.reply is None:
            return "\n".join([*parts, f"{OURS}Your turn: type an action. {explain_commands(self.commands)}."])
        parts += [f"{OURS}the agent replies ──", frame(self.reply[:MOST_CHARS])]
        if left_out := len(self.reply[MOST_CHARS:]):
            parts.append(f"{OURS}{counted(left_out, 'more character')} of the reply")
        parts += describe_action(self.action)
        parts += (frame(f"  /{number}  {one}") for number, one in enumerate(self.candidates, start=1))
        if self.asked_by:
            parts.append(f"{OURS}{one_line(self.asked_by)}")
        if self.commands:
            parts.append(f"{OURS}{explain_commands(self.commands)}; or type another action.")
        if self.timeout_s is not None:
            parts.append(f"{OURS}Without an answer within {self.timeout_s:g} s the action is rejected.")
        return "\n".join(parts)


def describe_action(action: str | None) -> Iterator[str]:
    """Yield the lines that show an action as a whole, also as bytes if it is no plain text."""
    if action is None:
        yield f"{OURS}action: {NO_ACTION}"
        return
    lines, plain = action.split("\n"), is_plain(action)
    if plain and len(lines) == 1 and 0 < len(action) <= SHORT and action != NO_ACTION:
        yield f"{OURS}action: {action}"
        return
    size = f"{counted(len(lines), 'line')}, {counted(len(action), 'character')}"
    yield f"{OURS}action ({size}):"
    width = len(str(len(lines)))
    numbers = (f"{number:{width}} " if len(lines) > 1 else "" for number in range(1, len(lines) + 1))
    yield from (frame(number + line) for number, line in zip(numbers, lines, strict=True))
    if not plain:
        yield f"{OURS}the action as bytes, since it is not plain ASCII text:"
        yield frame(show_bytes(action))
    if len(lines) >= LONG_LINES or len(action) >= MOST_CHARS:
        yield f"{OURS}the action above has {size} and begins with:"
        yield frame(one_line(action[:SHORT]))


def _exactly(action: str) -> str:
    """Return an action in one line, also as its bytes if it may look like another one."""
    return one_line(action) if is_plain(action) and "\n" not in action else f"{one_line(action)}  {show_bytes(action)}"


def _played(episode: Episode) -> Iterator[str]:
    before = len(episode.turns[:-SHOWN_TURNS])
    if before:
        yield f"{OURS}{counted(before, 'turn')} before"
    for number, turn in enumerate(episode.turns[-SHOWN_TURNS:], start=before + 1):
        refused = "" if turn.carried_out else " (not carried out)"
        yield frame(f"{number}. {one_line(shorten(str(turn.action or '(no action)'), 200))}{refused}")


def _observation(text: str, most_lines: int | None) -> Iterator[str]:
    yield f"{OURS}observation:"
    lines = text.split("\n")
    left_out = 0 if most_lines is None else max(0, len(lines) - most_lines)
    shown = "\n".join(lines[left_out:])
    cut = 0 if most_lines is None else max(0, len(shown) - MOST_CHARS)
    if left_out or cut:
        above = [counted(left_out, "line")] * bool(left_out) + [counted(cut, "character")] * bool(cut)
        yield f"{OURS}{' and '.join(above)} above"
    yield frame(shown[cut:])
