"""Section `episode` of a recipe."""

from dataclasses import dataclass

from verl_agent.errors import ConfigError, did_you_mean

CUT_TURNS = ("stop", "play")


@dataclass(frozen=True, slots=True)
class EpisodeSettings:
    """Section `episode`.

    Attributes:
        max_tokens_per_turn: tokens that one reply may have; the episode's budget is data.max_response_length.
        max_tokens: tokens of the whole episode after its prompt; null for data.max_response_length, which is the most.
        cut_turn: what becomes of a reply that reaches the budget: `stop` ends the episode, `play` closes the
            reply with an end-of-turn token that is not trained on, and plays it.
        record_dir: folder of the episode records, or null for none.
    """

    max_tokens_per_turn: int
    cut_turn: str = "stop"
    record_dir: str | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < self.max_tokens_per_turn:
            raise ConfigError(
                f"episode.max_tokens={self.max_tokens} must be at least episode.max_tokens_per_turn="
                f"{self.max_tokens_per_turn}, or null."
            )
        if self.max_tokens_per_turn < 1:
            raise ConfigError(f"episode.max_tokens_per_turn must be >= 1 token, got {self.max_tokens_per_turn}.")
        if self.cut_turn not in CUT_TURNS:
            raise ConfigError(
                f"episode.cut_turn={self.cut_turn!r} is not known. {did_you_mean(self.cut_turn, CUT_TURNS)}"
            )
