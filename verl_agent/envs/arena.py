"""Environments with several seats: who is to move, and a result for each seat."""

import json
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, final

from typing_extensions import override

from verl_agent.envs.base import EnvAdapter
from verl_agent.errors import ConfigError, EnvError, did_you_mean
from verl_agent.types import Message, StepResult, TaskItem

SEATS = "env.options.seats"
MATCH, SEAT = "match", "seat"
"""Keys of the data of an episode's task: the match that it is part of, and the name of its seat."""
LEAVE = "leave"
KINDS = {
    "self": "self, the policy that is trained",
    "script": "script:NAME",
    "frozen": "frozen:CHECKPOINT",
    "api": "api:MODEL@URL",
}
"""Forms of a seat's player, by kind."""


@dataclass(frozen=True, slots=True)
class SeatPlayer:
    """Player of a seat: its kind, a key of `KINDS`, and the text after the colon."""

    kind: str
    name: str = ""

    @classmethod
    def parse(cls, value: object, seat: str) -> Self:
        """Read one entry of `env.options.seats`.

        Raises:
            ConfigError: it has another form.
        """
        kind, colon, name = value.partition(":") if isinstance(value, str) else ("", "", "")
        if kind not in KINDS or bool(colon) == (kind == "self") or bool(name) == (kind == "self"):
            raise ConfigError(
                f"{SEATS}: {seat} has the player {value!r}, which is not allowed. Allowed: {', '.join(KINDS.values())}."
            )
        return cls(kind, name)


@dataclass(frozen=True, slots=True)
class MatchView:
    """State of a match as its players need it.

    Attributes:
        texts: text that each seat reads now: those that are to move, and at the end all.
        invalid: seats whose last action was not possible.
        results: result of each seat by number; None before the end.
    """

    texts: Mapping[int, str]
    invalid: Collection[int] = ()
    results: Sequence[float] | None = None

    def to_json(self) -> str:
        """Return the view as the observation of a session."""
        return json.dumps([list(self.texts.items()), list(self.invalid), self.results])

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` returned."""
        texts, invalid, results = json.loads(text)
        return cls(dict(texts), invalid, results)


class Arena(EnvAdapter):
    """Environment with several seats; authors define the methods below `check_players`.

    With one seat for a policy and scripts on the others it is played as any environment. Where policies have several
    seats, a `Match` (`verl_agent.rollout.matches`) plays it, and every seat has an episode of its own.
    """

    seat_names: Sequence[str]
    """Names of the seats, by number."""
    players: Sequence[SeatPlayer]
    """Player of each seat."""
    scripts: Sequence[str] = ("random",)
    """Names of scripts that `script` knows."""

    def check_players(self, seats: object, names: Sequence[str]) -> None:
        """Set `seat_names` and `players`; for the constructor.

        Args:
            seats: value of the option `seats`.
            names: names of the seats.

        Raises:
            ConfigError: a seat has no player, or one that is not allowed, or no seat is for a policy.
        """
        if not isinstance(seats, list | tuple) or len(seats) != len(names):
            raise ConfigError(
                f"{SEATS}={seats!r} is not allowed. Allowed: a list with one player for each seat, "
                f"{', '.join(names)}, such as [{', '.join(['self', *['script:random'] * (len(names) - 1)])}]."
            )
        players = [SeatPlayer.parse(*one) for one in zip(seats, names, strict=True)]
        for one in players:
            if one.kind == "script" and one.name not in self.scripts:
                raise ConfigError(f"{SEATS}: script:{one.name} is unknown. {did_you_mean(one.name, self.scripts)}")
        if not any(one.kind == "self" for one in players):
            raise ConfigError(f"{SEATS}={list(seats)} has no seat for the policy. Set at least one to self.")
        self.seat_names, self.players = names, players

    @abstractmethod
    async def begin(self, item: TaskItem) -> None:
        """Begin a match. Everything that is drawn follows from the task."""

    @abstractmethod
    def to_move(self) -> Sequence[int]:
        """Return the seats that are to move, several if they move at once; none at the end."""

    @abstractmethod
    def observe(self, seat: int) -> str:
        """Return the text that a seat reads now; it is called when the seat is to move, and at the end.

        The first text of a seat has the rules, and names the seat.
        """

    @abstractmethod
    async def move(self, actions: Mapping[int, str]) -> Collection[int]:
        """Carry out one action of each seat that is to move; return the seats whose action was not possible."""

    @abstractmethod
    def results(self) -> Sequence[float]:
        """Return the return of each seat at the end."""

    @abstractmethod
    def forfeit(self, seat: int) -> Sequence[float]:
        """Return the return of each seat where one leaves before the end, because a limit ended its episode.

        If leaving earns more than losing, policies learn to reach the limit.
        """

    @abstractmethod
    def script(self, name: str, seat: int) -> str:
        """Return the action of a script, which must be possible."""

    @property
    def policy_seats(self) -> list[int]:
        """Seats that policies play; those of scripts are left out."""
        return [seat for seat, one in enumerate(self.players) if one.kind != "script"]

    @property
    def trained_seats(self) -> list[int]:
        """Seats of the policy that is trained."""
        return [seat for seat, one in enumerate(self.players) if one.kind == "self"]

    @final
    @override
    async def reset(self, item: TaskItem) -> list[Message]:
        """Begin a match. With one seat for policies, return its prompt; else a `MatchView`, which a `Match` reads.

        Raises:
            ConfigError: policies have several seats, and the caller plays one.
        """
        self._is_match = MATCH in item.data
        self._forfeited: Sequence[float] | None = None
        self._paid_so_far = 0.0
        if not self._is_match and len(self.policy_seats) > 1:
            raise ConfigError(
                f"{SEATS} has {len(self.policy_seats)} seats for policies, and this command plays one. Give the other "
                f"seats to scripts ({', '.join(f'script:{name}' for name in self.scripts)}), or use verl-agent train."
            )
        await self.begin(item)
        await self._play_scripts({})
        view = self._view(())
        if self._is_match:
            return [{"role": "user", "content": view.to_json()}]
        (seat,) = self.policy_seats
        if view.results is not None:
            raise EnvError(f"the match ended before {self.seat_names[seat]} was to move.")
        return [{"role": "user", "content": view.texts[seat]}]

    @final
    @override
    async def step(self, action: str) -> StepResult:
        if not self._is_match:
            (seat,) = self.policy_seats
            if not self.to_move():
                return StepResult("The match has ended.", terminated=True)
            return self._paid(seat_result(await self._advance({seat: action}), seat), seat)
        asked: Mapping[str, Any] = json.loads(action)
        if LEAVE in asked:
            self._forfeited = self.forfeit(asked[LEAVE])
            view = self._view(())
        else:
            view = await self._advance({int(seat): text for seat, text in asked.items()})
        return StepResult(view.to_json(), terminated=view.results is not None)

    def _paid(self, result: StepResult, seat: int) -> StepResult:
        """Pay the return of leaving with the first action and the rest at the end: a limit may end the episode."""
        due = result.reward if result.terminated else float(self.forfeit(seat)[seat])
        self._paid_so_far, reward = due, due - self._paid_so_far
        return replace(result, reward=reward)

    async def _advance(self, actions: Mapping[int, str]) -> MatchView:
        invalid = await self._play_scripts(actions) if self.to_move() else ()
        return self._view(invalid)

    async def _play_scripts(self, actions: Mapping[int, str]) -> Collection[int]:
        """Carry out actions of policies, and those of scripts until a policy is to move; return invalid seats."""
        invalid: list[int] = []
        while turn := self.to_move():
            moves = {seat: self.script(one.name, seat) for seat in turn if (one := self.players[seat]).kind == "script"}
            if len(moves) < len(turn) and not actions:
                break
            refused = await self.move({**moves, **{seat: actions[seat] for seat in turn if seat in actions}})
            if wrong := [seat for seat in refused if seat in moves]:
                raise EnvError(f"script {self.players[wrong[0]].name!r} chose an action that is not possible.")
            invalid, actions = [*invalid, *refused], {}
        return invalid

    def _view(self, invalid: Collection[int]) -> MatchView:
        results = self._forfeited if self._forfeited is not None else None if self.to_move() else self.results()
        reads = (
            self.policy_seats if results is not None else [one for one in self.to_move() if one in self.policy_seats]
        )
        start = "" if self._forfeited is None else "The match has ended: a player left.\n"
        return MatchView({seat: start + self.observe(seat) for seat in reads}, invalid, results)


def seat_result(view: MatchView, seat: int) -> StepResult:
    """Return the answer to the last action of one seat."""
    ended = view.results is not None
    reward = float(view.results[seat]) if view.results is not None else 0.0
    return StepResult(view.texts[seat], reward, ended, {"invalid_action": 1.0} if seat in view.invalid else {})


def seat_item(item: TaskItem, arena: Arena, seat: int, match: str) -> TaskItem:
    """Return the task of one seat's episode; metrics report its category, the game and the seat, separately."""
    name = arena.seat_names[seat]
    data = {**item.data, MATCH: match, SEAT: name}
    return TaskItem(item.env, item.id, data, f"{item.category}, {name}" if item.category else name)


def as_match(item: TaskItem, name: str = "prompt") -> TaskItem:
    """Return a task whose session speaks for all seats, in views."""
    return replace(item, data={**item.data, MATCH: name})


def first_texts(messages: Sequence[Message]) -> list[Message]:
    """Return the longest prompt of the seats that move first, from the first view of a match."""
    texts = MatchView.from_json(messages[-1]["content"]).texts.values()
    return [{"role": "user", "content": max(texts, key=len, default="")}]
