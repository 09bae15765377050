"""One turn of an episode as a card: thought, action, observation, reward, measurements, and who decided."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from nicegui import ui

from verl_agent.errors import counted
from verl_agent.trace.turn_record import TurnRecord, turn_text
from verl_agent.viewer.layout import show_text
from verl_agent.viewer.text import describe_decision, short_name, split_reply


@contextmanager
def turn_card(number: int, turn: TurnRecord, behaviors: Sequence[str] = ()) -> Iterator[None]:
    """Show a turn, and yield inside of its card, below its observation.

    Args:
        number: number of the turn, from 1.
        behaviors: names of the behaviors that it shows.
    """
    text = turn_text(turn)
    thought, action, rest = split_reply(turn["reply"], text)
    with ui.card().props(f"id=turn-{number}").classes("w-full gap-1 scroll-mt-24"):
        with ui.row().classes("items-baseline gap-4 small muted"):
            ui.label(f"Turn {number}").classes("heading")
            tokens = f"{counted(turn['tokens'], 'token')}, " if turn["tokens"] else ""
            ui.label(f"{tokens}{turn['generate_s']:.2f} s; environment {turn['env_s']:.2f} s")
            if usage := turn.get("usage"):
                ui.label(f"ended by {short_name(usage['finish'])}" if usage.get("finish") else "")
            if turn["reward"]:
                ui.label(f"reward {turn['reward']:g}").classes("good-text" if turn["reward"] > 0 else "bad-text")
            for name, value in turn["info"].items():
                ui.label(f"{short_name(name)} {value:g}")
            for name in behaviors:
                ui.label(name.replace("_", " ")).classes("warn")
        if decision := describe_decision(turn):
            show_text(decision, "warn")
        if "proposed" in turn:
            ui.label("reply of the policy, which was not played").classes("small muted")
            show_text(turn["proposed"].strip(), "muted line-through")
        if thought.strip():
            if action:
                ui.label("said before the action").classes("small muted")
            show_text(thought.strip())
        if action:
            show_text(action, "accent")
        elif text is not None:
            show_text(f"action that was read from the reply: {text}", "accent")
        if rest.strip():
            show_text(rest.strip())
        if turn["observation"] is not None:
            show_text(turn["observation"], "sunken w-full")
        yield
