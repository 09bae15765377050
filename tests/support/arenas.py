"""Arenas for tests: a duel of numbers, in turn or at once."""

from collections.abc import Collection, Mapping, Sequence

from typing_extensions import override

from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.arena import Arena
from verl_agent.types import TaskItem


class Duel(Arena):
    """Two seats write a text; the one with more different letters and digits wins 1, the other loses 1.

    The texts are written in turn, or at once. A text with an exclamation mark is not possible; `crash` breaks the game.
    """

    action_format = LineFormat()
    success_reward = 0.5
    scripts = ("random", "wrong")

    def __init__(self, seats: Sequence[str] = ("self", "script:random"), at_once: bool = False) -> None:
        self.check_players(seats, ("left", "right"))
        self.at_once = at_once

    @override
    def tasks(self, split: str) -> Sequence[TaskItem]:
        self.check_split(split)
        return [TaskItem("duel", f"{split}-{number}", {"number": number}, "duel") for number in range(12)]

    @override
    async def begin(self, item: TaskItem) -> None:
        self.texts: dict[int, str] = {}

    @override
    def to_move(self) -> Sequence[int]:
        waiting = [seat for seat in range(2) if seat not in self.texts]
        return waiting if self.at_once else waiting[:1]

    @override
    def observe(self, seat: int) -> str:
        if not self.to_move():
            return f"{self.texts}"
        return f"You are {self.seat_names[seat]}. Write 1 or 12."

    @override
    async def move(self, actions: Mapping[int, str]) -> Collection[int]:
        if "crash" in actions.values():
            raise ValueError("broken")
        wrong = [seat for seat, text in actions.items() if "!" in text]
        self.texts |= {seat: text for seat, text in actions.items() if seat not in wrong}
        return wrong

    @override
    def results(self) -> Sequence[float]:
        left, right = (len({sign for sign in self.texts[seat] if sign.isalnum()}) for seat in range(2))
        return [float((left > right) - (left < right)), float((right > left) - (right < left))]

    @override
    def forfeit(self, seat: int) -> Sequence[float]:
        return [-1.0 if one == seat else 1.0 for one in range(2)]

    @override
    def script(self, name: str, seat: int) -> str:
        return "!" if name == "wrong" else "12"
