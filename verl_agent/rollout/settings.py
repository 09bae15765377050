"""Settings classes of section `episode` and of the keys of section `data` that rollouts read, and token budgets."""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field

from verl_agent.errors import ConfigError
from verl_agent.sections import OnResume, settings

Tokens = Annotated[int, Field(ge=1)]
OverlongPrompt = Literal["drop", "truncate_observation"]


@settings("episode.record_tokens")
class TokenRecording:
    """Token data that a training run writes for the viewer."""

    every: Annotated[int, Field(ge=1)] = 10
    """The first step and every such step are recorded."""
    groups: Annotated[int, Field(ge=1)] = 8
    """Most groups of a step that are recorded, the first ones in the order of tasks."""

    def due(self, step: int) -> bool:
        """Return True if a training step, from 1, is recorded."""
        return step == 1 or step % self.every == 0


@settings("episode")
class EpisodeSettings:
    """Token budgets and records of episodes."""

    max_tokens_per_turn: Tokens
    """Most tokens of one reply; that of the episode is `max_tokens`."""
    on_truncated_turn: Literal["stop", "play"] = "stop"
    """Handling of a reply that reaches its budget: `stop` ends the episode; `play` closes the reply with an end-of-turn
    token that is not trained on, and plays its action."""
    record_dir: Annotated[str | None, OnResume("train", "play")] = None
    """Folder of the episode records; null to write none."""
    record_tokens: Annotated[TokenRecording | None, OnResume("train")] = None
    """Token data in `<trainer.default_local_dir>/tokens`, such as `{every: 10, groups: 8}`; null to write none."""
    max_tokens: Tokens | None = None
    """Most tokens of the whole episode after its prompt, at most `data.max_response_length`; null for
    `data.max_response_length`."""
    seeded_sampling: bool = True
    """Give each request its own seed, derived from the seed of the run and the position of the reply. A resumed run
    then draws the same random numbers. False leaves them to the engine."""

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < self.max_tokens_per_turn:
            raise ConfigError(
                f"episode.max_tokens={self.max_tokens} must be at least episode.max_tokens_per_turn="
                f"{self.max_tokens_per_turn}, or null."
            )


@settings("data")
class PromptSettings:
    """Key of verl's section `data` that this package adds."""

    overlong_prompt: Annotated[OverlongPrompt, OnResume("train")] = "drop"
    """Handling of a prompt with more than `data.max_prompt_length` tokens. `drop`: the episode is not played, has the
    stop reason `overlong_prompt`, and counts towards `env.max_env_error_rate`. `truncate_observation`: the middle of
    the first observation is cut so that the prompt fits."""


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Token limits of one episode, all >= 1.

    Attributes:
        prompt: tokens before the first reply.
        episode: tokens after the prompt, replies and observations together. If the agent edits the context, prompt
            and response of each further segment share the sum of both budgets.
        turn: tokens of one reply.
        play_truncated_turns: close and play a reply that reaches `turn`, instead of ending the episode.
    """

    prompt: int
    episode: int
    turn: int
    play_truncated_turns: bool = False

    @classmethod
    def of(cls, settings: "EpisodeSettings", prompt: int, response: int) -> Self:
        """Return the limits of an episode of training: those of section `episode` within the lengths of a row."""
        plays = settings.on_truncated_turn == "play"
        return cls(prompt, settings.max_tokens or response, settings.max_tokens_per_turn, plays)
