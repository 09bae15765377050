"""An episode as HTML for pages, exports and notebooks: its facts, its prompt and its turns. All text is escaped.

`FACTS` and `texts_of` are the only places that know what a turn shows.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple

import verl_agent.viewer
from verl_agent.errors import counted
from verl_agent.trace.record import EpisodeRecord, env_label
from verl_agent.trace.turn_record import JudgementRecord, MediaRecord, TurnRecord, turn_text
from verl_agent.types import Message, StopReason
from verl_agent.viewer.parts import EpisodePart, first_part
from verl_agent.viewer.text import MAX_SHOWN, short_name
from verl_agent.visible import make_visible

THEME = Path(verl_agent.viewer.__file__).with_name("theme.css").read_text(encoding="utf-8")
_COLORS, _ELEMENTS = THEME.partition("/* Parts of NiceGUI */")[0].split("/* Elements */")
STYLE = (
    f"{_COLORS}.va {{{_ELEMENTS}}}\n"
    ".va {font: 14px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page)}\n"
    ".va .turn {border: 1px solid var(--line); border-radius: 8px; padding: 8px; margin: 8px 0}\n"
)
"""Rules for exported HTML, all below the class `va`."""
ENDINGS = {
    StopReason.TERMINATED: "The environment ended the task.",
    StopReason.TURN_LIMIT: "The episode reached its turn limit.",
    StopReason.TURN_TOKENS: "A reply reached the token budget of a turn.",
    StopReason.EPISODE_TOKENS: "The episode reached its token budget.",
    StopReason.ENV_ERROR: "The environment failed; the episode is not trained on.",
    StopReason.ACTION_ERROR: "The last action makes the environment fail each time; it counts as a failed episode.",
    StopReason.OVERLONG_PROMPT: "The prompt is longer than its limit; no turn was played.",
    StopReason.REQUEST_REFUSED: "The server of the model refused the request of a turn; the episode is in no rate.",
    StopReason.CANCELLED: "The run was stopped during the episode.",
    StopReason.OPERATOR: "A person ended the episode.",
}
"""Sentence for each reason to end."""


class Fact(NamedTuple):
    """Short fact in the head of a turn or of an episode, with the classes of its look."""

    text: str
    look: str = ""


class TurnText(NamedTuple):
    """Text of a turn.

    Attributes:
        label: name above it; empty for none.
        field: field of the record that has the whole text; empty for a text that is put together.
    """

    text: str
    look: str = ""
    label: str = ""
    field: str = ""


FindImage = Callable[[str], str | None]
"""Returns the URL of an image by its path in the record; None without such an image."""
ShowRest = Callable[[str, str], str]
"""Returns HTML for the characters of a text after the first `MAX_SHOWN`, by the place of the text in the episode."""


def _time(turn: TurnRecord) -> Iterator[Fact]:
    tokens = f"{counted(turn['tokens'], 'token')}, " if turn["tokens"] else ""  # 0 if unknown
    yield Fact(f"{tokens}{turn['generate_s']:.2f} s; environment {turn['env_s']:.2f} s")


def _end(turn: TurnRecord) -> Iterator[Fact]:
    if finish := turn.get("usage", {}).get("finish"):
        yield Fact(f"ended by {short_name(finish)}")


def _reward(turn: TurnRecord) -> Iterator[Fact]:
    if turn["reward"]:
        yield Fact(f"reward {turn['reward']:g}", "good-text" if turn["reward"] > 0 else "bad-text")


def _measurements(turn: TurnRecord) -> Iterator[Fact]:
    yield from (Fact(f"{short_name(name)} {value:g}") for name, value in turn["info"].items())


FACTS: list[Callable[[TurnRecord], Iterable[Fact]]] = [_time, _end, _reward, _measurements]
"""Facts in the head of a turn, in order. Pages, exports and notebooks show a fact that is added here."""


def texts_of(turn: TurnRecord) -> Iterator[TurnText]:
    """Yield the texts of a turn: who decided, thought, action, observation."""
    yield TurnText(describe_decision(turn), "warn")
    if "proposed" in turn:
        label = "reply of the policy, which was not played"
        yield TurnText(turn["proposed"].strip(), "muted line-through", label, "proposed")
    text = turn_text(turn)
    thought, action, rest = split_reply(turn["reply"], text)
    yield TurnText(thought.strip(), label="said before the action" if action else "", field="reply")
    yield TurnText(action, "accent", field="reply")
    if text is not None and not action:
        yield TurnText(f"action that was read from the reply: {text}", "accent")
    yield TurnText(rest.strip(), field="reply")
    yield TurnText(turn["observation"] or "", "sunken", field="observation")


def split_reply(reply: str, action: str | None) -> tuple[str, str, str]:
    """Return the parts of a reply before, in and after its action; without one, all of it is the first part."""
    start = reply.rfind(action) if action else -1
    if action is None or start < 0:
        return reply, "", ""
    return reply[:start], action, reply[start + len(action) :]


def describe_decision(turn: TurnRecord) -> str:
    """Return who wrote a turn and who decided on it, in a line; "" where the policy wrote it and nobody decided."""
    parts = [f"written by the {turn['author']}"] if "author" in turn else []
    if review := turn.get("review"):
        by = "a rule" if review["by"] == "rule" else f"the {review['by']}"
        reason = f": {review['reason']}" if review["reason"] else ""
        parts.append(f"{review['decision'].replace('_', ' ')} by {by}{reason} ({review['seconds']:.1f} s)")
    return "; ".join(parts)


def no_image(path: str) -> str | None:
    """Return None: no image is shown."""
    return None


def fold(place: str, rest: str) -> str:
    """Return the rest of a text, which a click shows."""
    text = _text_html(rest, "mono")
    return f"<details><summary>{len(rest):,} more characters</summary>{text}</details>"


def turn_head(number: int, turn: TurnRecord, behaviors: Iterable[str] = ()) -> str:
    """Return the number and the facts of a turn, from 1, and the behaviors that it shows."""
    facts = [fact for find in FACTS for fact in find(turn)]
    facts += [Fact(name.replace("_", " "), "warn") for name in behaviors]
    return f"<div class='facts small muted'><h3 class='heading'>Turn {number}</h3>{facts_html(facts)}</div>"


def turn_html(
    number: int,
    turn: TurnRecord,
    behaviors: Iterable[str] = (),
    image: FindImage = no_image,
    rest: ShowRest = fold,
) -> str:
    """Return a turn.

    Args:
        number: number of the turn, from 1.
        behaviors: names of the behaviors that it shows.
    """
    parts = [turn_head(number, turn, behaviors)]
    for text, look, label, field in texts_of(turn):
        if text:
            parts.append(f"<div class='small muted'>{label}</div>" if label else "")
            parts.append(block(text, look, f"turn={number}&part={field}", rest if field else fold))
    parts += [_image_html(one, image(one["path"])) for one in turn.get("media", ())]
    return "".join(parts)


def facts_html(facts: Iterable[Fact]) -> str:
    """Return facts beside each other."""
    return "".join(f"<span class='{look}'>{html(text)}</span>" for text, look in facts)


def messages_html(messages: Iterable[Message], rest: ShowRest = fold) -> str:
    """Return messages below the names of their roles."""
    return "".join(
        f"<div class='small muted'>{html(short_name(message['role']))}</div>"
        + block(message["content"], "", f"message={number}", rest)
        for number, message in enumerate(messages)
    )


def block(text: str, look: str = "", place: str = "", rest: ShowRest = fold) -> str:
    """Return a text as it is, of which at most `MAX_SHOWN` characters are shown at first."""
    more = rest(place, text[MAX_SHOWN:]) if len(text) > MAX_SHOWN else ""
    return _text_html(text[:MAX_SHOWN], f"mono {look}".rstrip()) + more


def html(value: object) -> str:
    """Return a value as HTML, with the control characters of a text visible."""
    return escape(make_visible(f"{value:g}" if isinstance(value, float) else str(value)))


def _text_html(text: str, look: str) -> str:
    return f"<div class='{look}'>{html(text)}</div>"


def _image_html(media: MediaRecord, url: str | None) -> str:
    title = html(media["title"])
    if url is None:
        return _text_html(f"{media['title']} (the image {media['path']} is missing or left out)", "small muted")
    shown = f'<img alt="{title}" src="{escape(url)}">'
    if box := media.get("box"):
        places = zip(("left", "top", "width", "height"), box, strict=True)
        style = ";".join(f"{name}:{100 * max(0.0, min(1.0, share)):.2f}%" for name, share in places)
        shown += f'<span class="marked" style="{style}"></span>'
    framed = f'<span class="image">{shown}</span>'
    linked = framed if url.startswith("data:") else f'<a href="{escape(url)}" target="_blank">{framed}</a>'
    return f"<div class='small muted'>{title}</div>{linked}"


def episode_facts(record: EpisodeRecord, total: int) -> list[Fact]:
    """Return the facts of an episode of `total` turns: what it reached, and why it ended."""
    solved = record["success"]
    facts = [
        Fact("solved" if solved else "not solved", "chip good" if solved else "chip bad"),
        Fact(f"return {record['reward']:g}"),
        Fact(f"{total:,} of {record['max_turns']:,} turns"),
        Fact(f"{record['seconds']:.1f} s"),
        Fact(ENDINGS.get(StopReason(record["stop"]), record["stop"])),
    ]
    if "shaped_return" in record:
        facts.insert(2, Fact(f"shaped return {record['shaped_return']:g}"))
    return facts


def names_of(record: EpisodeRecord) -> list[Fact]:
    """Return what an episode is of: environment, task, step and the like."""
    fields = ("category", "task", "split", "purpose", "step", "sample", "attempt", "model")
    names: dict[str, object] = {"env": env_label(record)}
    names |= {name: value for name, value in record.items() if name in fields}
    return [Fact(f"{name} {short_name(str(value))}", "muted") for name, value in names.items() if value != ""]


def judgements_html(judgements: Iterable[JudgementRecord]) -> str:
    """Return the verdicts of a judge with their reasons."""
    every = list(judgements)
    parts = []
    for one in every:
        where = f", turn {one['turn'] + 1}" if len(every) > 1 else ""
        cost = "" if one["cost_usd"] is None else f", {one['cost_usd']:.4g} USD"
        title = f"Judge{where}: score {one['score']:.2f}, reward {one['reward']:g} ({short_name(one['model'])}{cost})"
        parts.append(f"<details {'' if where else 'open'}><summary>{html(title)}</summary>")
        if one["replaced"] is not None:
            parts.append(f"<div class='small muted'>in place of the environment's reward {one['replaced']:g}</div>")
        for grade in one["grades"]:
            named = f"{short_name(grade['criterion'])}: {grade['score']:.2f}, weight {grade['weight']:g}"
            parts.append(f"<div>{html(named)}</div>{block(grade['reason'])}")
        parts.append("</details>")
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class EpisodeView:
    """Episode that a notebook shows as HTML."""

    record: EpisodeRecord

    def _repr_html_(self) -> str:
        return f'<style>{STYLE}</style><div class="va">{episode_html(first_part(self.record))}</div>'


def show_episode(record: EpisodeRecord) -> EpisodeView:
    """Return a view of a recorded episode that a notebook shows turn by turn."""
    return EpisodeView(record)


def episode_html(part: EpisodePart, image: FindImage = no_image) -> str:
    """Return the first turns of an episode below its facts and its prompt. The number of the other turns is named."""
    record = part.record
    turns = [
        f"<section class='turn'>{turn_html(number, turn, shown, image)}</section>"
        for number, turn, shown in zip(part.numbers, record["turns"], part.behaviors, strict=True)
    ]
    if (left_out := part.total - len(turns)) > 0:
        turns.append(f"<p>{left_out:,} more turns are left out. The viewer shows them: verl-agent view RUN.</p>")
    prompt = messages_html(record["messages"][: record["prompt_length"]])
    return (
        f"<div class='facts'>{facts_html(episode_facts(record, part.total))}</div>"
        f"<div class='facts'>{facts_html(names_of(record))}</div>"
        f"{block(record['error']) if record['error'] else ''}{judgements_html(record.get('judgements', ()))}"
        f"<details><summary>Prompt ({counted(record['prompt_length'], 'message')})</summary>{prompt}</details>"
        f"{''.join(turns)}"
    )
