"""OpenSpiel: its games for two and more players as arenas."""

from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Any

from typing_extensions import override

from env_adapters.seeded import Count, Names, SeededEnv
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.arena import Arena
from verl_agent.envs.base import Hosting
from verl_agent.envs.options import checked_options
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError, describe_exception, did_you_mean
from verl_agent.types import TaskItem

RULES = {
    "kuhn_poker": (
        "You play Kuhn poker: three cards, 0 < 1 < 2; each player pays 1 and gets one card. Answer Pass or Bet. "
        "A bet costs 1. To pass after a bet is to fold. Else the higher card wins the pot. "
        "The state is your card and the moves so far, p for pass and b for bet."
    ),
    "leduc_poker": (
        "You play Leduc poker: cards 0 to 5, where 0 and 1, 2 and 3, 4 and 5 have equal rank; each player pays 1 and "
        "gets one private card. There are two rounds of bets, at most two raises each, of 2 and then 4. A public card "
        "is shown before the second. A pair with the public card wins, else the higher rank. "
        "Answer Fold, Call or Raise."
    ),
    "liars_dice": (
        "You play liar's dice: each player has one die that the other does not see. In turn, bid how many dice of all "
        "players show a face, as quantity-face such as 1-4, higher than the bid before, or answer Liar. A six counts "
        "as any face. After Liar the last bidder wins if the bid is true, else the caller. "
        "The state is your die and the bids so far."
    ),
    "tiny_hanabi": (
        "You play a game of two partners who win together: each sees an own card, d0 or d1. Player 0 moves first, and "
        "player 1 sees that move. Both get the same points, 0 to 10, for their two moves. "
        "The state is your card, then the moves so far. Answer with one of the listed moves."
    ),
    "bargaining": (
        "You share out a pool of books, hats and basketballs with another player. Each values the items differently "
        "and knows only the own values. Offer what you would take for yourself, or answer Agree to accept the other's "
        "last offer. Without an agreement after ten offers nobody gets anything. Your result is the value you get."
    ),
}
"""Rules by OpenSpiel's short name of the game."""


MAX_ACTIONS = 60
"""Most actions that an observation lists."""
MAX_TEXT = 4000
"""Most characters of a state."""
WIN = 1e-6
"""Least return of a win."""


class OpenSpiel(SeededEnv, Arena):
    """Games of OpenSpiel. Chance follows from the seed of the task, and results are the game's returns."""

    env, module = "openspiel", "pyspiel"
    action_format = LineFormat()
    hosting = Hosting(threads=1, sessions=256)

    @checked_options
    def __init__(
        self,
        names: Names = "kuhn_poker",
        seats: Sequence[str] = ("self", "script:random"),
        params: Mapping[str, Any] | None = None,
        train: Count = 1000,
        test: Count = 100,
        allow_unseeded: bool = False,
        rules: bool = True,
    ) -> None:
        """Check the options, and load the games.

        Args:
            names: short name of a game, such as `leduc_poker`, or a list of names; all have the same number of seats.
            seats: player of each seat, see `SeatPlayer`.
            params: parameters of the games, such as `{players: 3}`.
            train: number of training tasks of each game, which are seeds.
            test: number of held-out tasks of each game.
            allow_unseeded: see `SeededEnv`.
            rules: False leaves the rules out of the prompt, for small models that learn them from results.
        """
        super().__init__(names, train, test, allow_unseeded)
        self.params, self.rules = dict(params or {}), rules
        self.games = {name: self._load(name) for name in self.names}
        sizes = {name: game.num_players() for name, game in self.games.items()}
        if len(set(sizes.values())) > 1 or min(sizes.values()) < 2:
            counts = ", ".join(f"{name} {count}" for name, count in sizes.items())
            raise ConfigError(
                f"env.options.names={names!r} have these numbers of seats: {counts}. Allowed: games with the same "
                "number, 2 or more. Play others as entries of env.mixture."
            )
        self.check_players(seats, [f"player {seat}" for seat in range(sizes[self.names[0]])])
        wins = {name: self._win(game) for name, game in self.games.items()}
        if len(set(wins.values())) > 1:
            raise ConfigError(
                f"env.options.names={names!r} count as solved at different returns: {wins}. Play them as entries of "
                "env.mixture."
            )
        self.success_reward = wins[self.names[0]]

    def _load(self, name: str) -> Any:
        """Return a game.

        Raises:
            ConfigError: it is unknown, does not take the parameters, or has no text.
        """
        library = self.library()
        known = [one.short_name for one in library.registered_games()]
        if name not in known:
            raise ConfigError(f"env.options.names={name!r} is no game of OpenSpiel. {did_you_mean(name, known, 400)}")
        try:
            game = library.load_game(name, self.params)
        except library.SpielError as error:
            raise ConfigError(
                f"env.options.names={name!r} does not load with env.options.params={self.params!r}: "
                f"{describe_exception(error)}. Change the parameters."
            ) from error
        kind = game.get_type()
        if not kind.provides_information_state_string and not kind.provides_observation_string:
            raise ConfigError(f"env.options.names={name!r} has no texts of its states. Choose another game.")
        return game

    def _win(self, game: Any) -> float:
        identical = game.get_type().utility == self.library().GameType.Utility.IDENTICAL
        return float(game.max_utility()) if identical else WIN

    @property
    @override
    def deterministic(self) -> bool:  # type: ignore[override]
        """True if all chance is drawn here, from the seed; games with sampled chance draw inside OpenSpiel."""
        sampled = self.library().GameType.ChanceMode.SAMPLED_STOCHASTIC
        return all(game.get_type().chance_mode != sampled for game in self.games.values())

    @override
    async def begin(self, item: TaskItem) -> None:
        self._name = item.data["name"]
        self._game, self._seed, self._draws = self.games[self._name], item.data["seed"], 0
        self._state = self._game.new_initial_state()
        self._chosen: dict[int, int] = {}
        self._begun: set[int] = set()
        self._wrong: dict[int, str] = {}
        self._luck = Random(f"script {self._name} {self._seed}")
        self._play_chance()

    def _play_chance(self) -> None:
        """Draw chance from the seed and the number of the draw, so that other actions meet the same luck."""
        while self._state.is_chance_node():
            actions, weights = zip(*self._state.chance_outcomes(), strict=True)
            luck, self._draws = Random(f"{self._name} {self._seed} {self._draws}"), self._draws + 1
            self._state.apply_action(luck.choices(actions, weights)[0])

    @override
    def to_move(self) -> Sequence[int]:
        if self._state.is_terminal():
            return ()
        if not self._state.is_simultaneous_node():
            return (self._state.current_player(),)
        return [seat for seat in range(self._game.num_players()) if seat not in self._chosen]

    def _legal(self, seat: int) -> dict[str, int]:
        """Return the possible actions of a seat by their texts."""
        return {self._state.action_to_string(seat, action): action for action in self._state.legal_actions(seat)}

    @override
    def observe(self, seat: int) -> str:
        parts = []
        if seat not in self._begun:
            self._begun.add(seat)
            parts += [RULES.get(self._name, self._generic())] if self.rules else []
            parts.append(f"You are player {seat}.")
        if wrong := self._wrong.pop(seat, ""):
            parts.append(f"{wrong} is not possible.")
        kind = self._game.get_type()
        if not self._state.is_terminal() or kind.provides_observation_string:
            informed = kind.provides_information_state_string
            parts.append("State: " + shorten(self._text(seat, informed).strip(), MAX_TEXT))
        if self._state.is_terminal():
            parts.append(f"The match has ended. Your result: {self._state.returns()[seat]:g}")
        elif legal := list(self._legal(seat)):
            more = ", ..." if len(legal) > MAX_ACTIONS else ""
            parts.append(f"Actions: {', '.join(legal[:MAX_ACTIONS])}{more}")
        return "\n".join(parts)

    def _text(self, seat: int, informed: bool) -> str:
        state = self._state
        return str(state.information_state_string(seat) if informed else state.observation_string(seat))

    def _generic(self) -> str:
        return f"You play {self._game.get_type().long_name}. Answer with one of the listed actions."

    @override
    async def move(self, actions: Mapping[int, str]) -> Collection[int]:
        invalid = []
        for seat, text in actions.items():
            names = self._legal(seat)
            legal = {_plain(name): action for name, action in names.items()} | names  # a name as it is comes first
            if (chosen := text.strip() if text.strip() in names else _plain(text)) in legal:
                self._chosen[seat] = legal[chosen]
            else:
                invalid.append(seat)
                self._wrong[seat] = shorten(text, 200)
        if self._state.is_simultaneous_node():
            if len(self._chosen) == self._game.num_players():
                self._state.apply_actions([self._chosen[seat] for seat in sorted(self._chosen)])
                self._chosen = {}
        elif self._chosen:
            self._state.apply_action(self._chosen.popitem()[1])
        self._play_chance()
        return invalid

    @override
    def results(self) -> Sequence[float]:
        return [float(result) for result in self._state.returns()]

    @override
    def forfeit(self, seat: int) -> Sequence[float]:
        """The seat that leaves gets the lowest return; in a game of constant sum the others share the rest."""
        utilities, count = self.library().GameType.Utility, self._game.num_players()
        worst, utility = float(self._game.min_utility()), self._game.get_type().utility
        if utility == utilities.IDENTICAL:
            return [worst] * count
        constant = utility in (utilities.ZERO_SUM, utilities.CONSTANT_SUM)
        rest = (float(self._game.utility_sum()) - worst) / (count - 1) if constant else 0.0
        return [worst if one == seat else rest for one in range(count)]

    @override
    def script(self, name: str, seat: int) -> str:
        return self._luck.choice(list(self._legal(seat)))

    @override
    async def close(self) -> None:
        self._state = None


def _plain(text: str) -> str:
    return "".join(text.lower().split()).strip("[].\"'`")
