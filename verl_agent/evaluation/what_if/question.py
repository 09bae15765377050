"""Question to one turn of a recorded episode, checked before anything is loaded."""

from dataclasses import dataclass

from verl_agent.errors import ConfigError
from verl_agent.evaluation.what_if.recorded import RecordedEpisode
from verl_agent.evaluation.what_if.summary import comparable


@dataclass(frozen=True, slots=True)
class TurnQuestion:
    """Question to one turn of a recorded episode.

    Attributes:
        samples: number of replies, or of episodes after each action, >= 1.
        action: action to take instead of the recorded one; None for none.
        oracle: take the action of the environment's oracle.
        without_thought: draw replies without a thought too.
    """

    recorded: RecordedEpisode
    turn: int
    samples: int
    action: str | None = None
    oracle: bool = False
    without_thought: bool = False

    def __post_init__(self) -> None:
        self.recorded.check_turn(self.turn)
        if self.samples < 1:
            raise ConfigError(f"--samples {self.samples} is not allowed. Allowed: a whole number >= 1.")
        if self.action is not None and self.oracle:
            raise ConfigError("--action and --oracle name two actions. Give one of them.")
        if self.without_thought and self.plays_on:
            raise ConfigError("--without-thought asks for replies and plays no episode. Leave --action, --oracle out.")
        if self.action is not None and comparable(self.action) == comparable(self.recorded_action):
            raise ConfigError(f"--action {self.action!r} is the recorded action, so there is nothing to compare.")

    @property
    def plays_on(self) -> bool:
        """True if episodes are played on after another action; False if replies are drawn."""
        return self.action is not None or self.oracle

    @property
    def recorded_action(self) -> str | None:
        """Action of the recorded turn."""
        action = self.recorded.episode.turns[self.turn - 1].action
        return None if action is None else str(action)
