"""TextArena: its games for one player."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from env_adapters.seeded import Count, Names, OwnRandom, SeededEnv
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.base import Hosting
from verl_agent.envs.options import checked_options
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError, describe_exception, did_you_mean
from verl_agent.types import Message, StepResult, TaskItem

MAX_TEXT = 12_000
"""Most characters of an observation."""
MAX_ACTION = 2000
"""Most characters of an action that a game reads."""
RAW = "-raw"
"""End of the names of TextArena without its wrappers, which would repeat the whole conversation in each observation."""


class TextArena(SeededEnv):
    """Game for one player, with TextArena's outcome as the reward of the last step: at most 1, and -1 for a loss."""

    env, module = "textarena", "textarena"
    action_format = LineFormat()
    hosting = Hosting(threads=1, sessions=64)  # games share the process-wide generator of random numbers

    @checked_options
    def __init__(
        self,
        names: Names = "GuessTheNumber-v0",
        kwargs: Mapping[str, Any] | None = None,
        train: Count = 1000,
        test: Count = 100,
        allow_unseeded: bool = False,
    ) -> None:
        """Check the options, and that the games are for one player.

        Args:
            names: id of a game, such as `Wordle-v0`, or a list of ids.
            kwargs: arguments of the game, such as `{max_turns: 10}`.
            train: number of training tasks of each game, which are seeds.
            test: number of held-out tasks of each game.
            allow_unseeded: see `SeededEnv`.
        """
        super().__init__(names, train, test, allow_unseeded)
        self.kwargs = dict(kwargs or {})
        known = self.library().envs.registration.ENV_REGISTRY
        for name in self.names:
            if f"{name}{RAW}" not in known:
                ids = [one for one in known if f"{one}{RAW}" in known]
                raise ConfigError(f"env.options.names={name!r} is no game of TextArena. {did_you_mean(name, ids, 400)}")
        self._game: Any = None
        self._ended = True

    def _make(self, name: str) -> Any:
        """Return a game, without TextArena's wrappers.

        Raises:
            ConfigError: the game does not take the options or lacks a package or data.
        """
        try:
            return self.library().make(f"{name}{RAW}", **self.kwargs)
        except Exception as error:  # boundary to other people's games
            raise ConfigError(
                f"env.options.names={name!r} cannot be made with env.options.kwargs={self.kwargs!r}: "
                f"{describe_exception(error).replace('*', '').strip()}. Change kwargs, or install what the game lacks."
            ) from error

    @override
    async def reset(self, item: TaskItem) -> list[Message]:
        """Begin the game with the seed of `item` and show its rules."""
        name, seed = item.data["name"], item.data["seed"]
        self._random = OwnRandom(seed)
        with self._random():
            self._game = self._make(name)
            try:
                self._game.reset(num_players=1, seed=seed)
            except (AssertionError, ValueError) as error:
                raise ConfigError(
                    f"env.options.names={name!r} does not begin with one player: {error}. Choose a game for one player."
                ) from error
        spec = self.library().envs.registration.ENV_REGISTRY[name]
        self._brackets = any(one.__name__ == "ActionFormattingWrapper" for one in spec.default_wrappers or ())
        self._ended = False
        return [{"role": "user", "content": self._observe() or f"You play {name}."}]

    @override
    async def step(self, action: str) -> StepResult:
        """Make a move. The game ends after several invalid ones in a row."""
        if self._ended:
            return StepResult("The game has ended.", terminated=True)
        move = action[:MAX_ACTION]
        if self._brackets and "[" not in move and "]" not in move:
            move = f"[{move}]"
        with self._random():
            try:
                done, _ = self._game.step(action=move)
            except Exception as error:  # boundary to other people's games: a move that they cannot read is a loss
                self._ended = True
                text = f"The game has ended: it cannot read this move ({type(error).__name__})."
                return StepResult(text, terminated=True, info={"invalid_action": 1.0})
        state = self._game.state
        wrong = bool(getattr(state, "error_count", 0)) or bool(state.game_info[0].get("invalid_move"))
        self._ended, text = bool(done), self._observe()
        reward, reason = (state.rewards or {}).get(0, 0.0) if done else 0.0, state.game_info[0].get("reason")
        if isinstance(reward, str):  # four games of 0.7.4 have the reason of a bad move in its place
            reward, reason, wrong = 0.0, reward, True
        if done and reason:
            text = f"{text}\n{reason}".strip()
        return StepResult(text or "(no message)", reward, self._ended, {"invalid_action": 1.0} if wrong else {})

    def _observe(self) -> str:
        """Return the messages of the game since the last move, without the player's own."""
        _, messages = self._game.get_observation()
        own = self.library().ObservationType.PLAYER_ACTION
        texts = [str(text) for _, text, kind in messages if kind is not own]
        return shorten("\n".join(texts).strip(), MAX_TEXT)

    @override
    async def close(self) -> None:
        self._game = None
