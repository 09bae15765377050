"""One episode as HTML without scripts, for exported pages and notebooks. Everything from outside is escaped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import verl_agent.viewer
from verl_agent.errors import counted
from verl_agent.trace.record import EpisodeRecord, env_label
from verl_agent.trace.turn_record import TurnRecord, turn_text
from verl_agent.viewer.parts import EpisodePart, first_part
from verl_agent.viewer.text import MAX_SHOWN, describe_decision, split_reply
from verl_agent.visible import make_visible

_COLORS = Path(verl_agent.viewer.__file__).with_name("theme.css").read_text(encoding="utf-8").split("/* Elements")[0]
STYLE = (
    f"""{_COLORS}
.va {{font: 14px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page)}}
"""
    """
.va pre {font: 12px/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: 2px 0;
  unicode-bidi: plaintext}
.va .turn {border: 1px solid var(--line); border-radius: 4px; padding: 6px 8px; margin: 6px 0}
.va .facts {color: var(--muted); font-size: 12px}
.va .facts b {color: var(--text)}
.va .action {background: var(--accent); padding: 2px 6px; border-radius: 4px}
.va .observation {background: var(--sunken); padding: 4px 6px; border-radius: 4px}
.va .behavior {background: var(--warn-back); padding: 0 4px; border-radius: 4px}
.va .decision {background: var(--warn-back); padding: 2px 6px; border-radius: 4px}
.va .proposed {color: var(--muted); text-decoration: line-through}
.va .solved {color: var(--good)}
.va img {max-width: 100%; border: 1px solid var(--line)}
.va summary {cursor: pointer; color: var(--muted)}
"""
)
"""Rules for `episode_html`, all below the class `va`."""


@dataclass(frozen=True, slots=True)
class EpisodeView:
    """Episode that a notebook shows as HTML."""

    record: EpisodeRecord

    def _repr_html_(self) -> str:
        return f'<style>{STYLE}</style><div class="va">{episode_html(first_part(self.record))}</div>'


def show_episode(record: EpisodeRecord) -> EpisodeView:
    """Return a view of a recorded episode that a notebook shows turn by turn."""
    return EpisodeView(record)


def episode_html(part: EpisodePart, image: Callable[[str], str | None] = lambda path: None) -> str:
    """Return the first turns of an episode: thought, action, observation, rewards; and why it ended.

    Args:
        part: these turns. The number of the others is named.
        image: function from the path of an image of the record to its `data:` URL; None where it does not exist.
    """
    record = part.record
    outcome = '<b class="solved">solved</b>' if record["success"] else "<b>not solved</b>"
    facts = [
        outcome,
        f"return {record['reward']:g}",
        f"ended by {_text(record['stop'])}",
        f"{part.total:,} of {record['max_turns']:,} turns",
        f"{record['seconds']:.1f} s",
        f"step {record['step']}, {_text(record['purpose'])}, sample {record['sample']}, attempt {record['attempt']}",
    ]
    if "shaped_return" in record:
        facts.insert(2, f"shaped return {record['shaped_return']:g}")
    title = " ".join(_text(name) for name in (env_label(record), record["category"], record["task"]) if name)
    shown = record["messages"][: record["prompt_length"]]
    prompt = "".join(_message(message["role"], message["content"]) for message in shown)
    turns = [
        _turn(number, turn, shown) + _images(turn, image)
        for number, turn, shown in zip(part.numbers, record["turns"], part.behaviors, strict=True)
    ]
    if (left_out := part.total - len(turns)) > 0:
        turns.append(f"<p>{left_out:,} more turns are left out. The viewer shows them: verl-agent view RUN.</p>")
    error = f"<p>{_text(record['error'])}</p>" if record["error"] else ""
    return (
        f"<h3>{title}</h3><p class='facts'>{' · '.join(facts)}</p>{error}"
        f"<details><summary>prompt ({counted(record['prompt_length'], 'message')})</summary>{prompt}</details>"
        f"{''.join(turns)}"
    )


def _message(role: str, content: str) -> str:
    return f"<p class='facts'>{_text(role)}</p>{_block(content)}"


def _turn(number: int, turn: TurnRecord, behaviors: Sequence[str]) -> str:
    tokens = f"{counted(turn['tokens'], 'token')}, " if turn["tokens"] else ""  # 0 if unknown
    facts = [f"<b>turn {number}</b>", f"{tokens}{turn['generate_s']:.2f} s"]
    facts.append(f"environment {turn['env_s']:.2f} s")
    if turn["reward"]:
        facts.append(f"reward {turn['reward']:g}")
    facts += [f"{_text(name)} {value:g}" for name, value in turn["info"].items()]
    facts += [f"<span class='behavior'>{_text(name.replace('_', ' '))}</span>" for name in behaviors]
    text = turn_text(turn)
    thought, action, rest = split_reply(turn["reply"], text)
    parts = [_block(describe_decision(turn), "decision")]
    if "proposed" in turn:
        parts += [
            "<p class='facts'>reply of the policy, which was not played</p>",
            _block(turn["proposed"], "proposed"),
        ]
    parts.append(_block(thought.strip()))
    if action:
        parts.append(_block(action, "action"))
    elif text is not None:
        parts.append(_block(f"action that was read from the reply: {text}", "action"))
    parts.append(_block(rest.strip()))
    if turn["observation"] is not None:
        parts.append(_block(turn["observation"], "observation"))
    return f"<section class='turn'><p class='facts'>{' · '.join(facts)}</p>{''.join(parts)}</section>"


def _images(turn: TurnRecord, image: Callable[[str], str | None]) -> str:
    found = [(one["title"], image(one["path"])) for one in turn.get("media", ())]
    return "".join(f'<img alt="{_text(title)}" src="{escape(url)}">' for title, url in found if url)


def _block(text: str, kind: str = "") -> str:
    """Return a text as a block; what exceeds `MAX_SHOWN` characters is folded."""
    if not text:
        return ""
    rest = text[MAX_SHOWN:]
    folded = (
        f"<details><summary>{len(rest):,} more characters</summary><pre>{_text(rest)}</pre></details>" if rest else ""
    )
    return f"<pre class='{kind}'>{_text(text[:MAX_SHOWN])}</pre>{folded}"


def _text(text: object) -> str:
    return escape(make_visible(str(text)))
