"""Settings classes of section `episode` and of the keys of section `data` that rollouts read, and token budgets."""

from dataclasses import dataclass as plain_dataclass
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_agent.errors import ConfigError
from verl_agent.sections import STRICT

Tokens = Annotated[int, Field(ge=1)]
OverlongPrompt = Literal["drop", "truncate_observation"]


@dataclass(frozen=True, slots=True, config=STRICT)
class TokenRecording:
    """Section `episode.record_tokens`: amount of token data that a training run writes.

    Attributes:
        every: the first step and every such step are recorded.
        groups: most groups of a step that are recorded, the first ones in the order of tasks.
    """

    every: Annotated[int, Field(ge=1)] = 10
    groups: Annotated[int, Field(ge=1)] = 8

    def due(self, step: int) -> bool:
        """Return True if a training step, from 1, is recorded."""
        return step == 1 or step % self.every == 0


@dataclass(frozen=True, slots=True, config=STRICT)
class EpisodeSettings:
    """Section `episode`: token budgets and records.

    Attributes:
        max_tokens_per_turn: most tokens of one reply; the budget of the episode is `data.max_response_length`.
        on_truncated_turn: handling of a reply that reaches its budget: `stop` ends the episode; `play` closes the
            reply with an end-of-turn token that is not trained on, and plays its action.
        record_dir: folder of the episode records; null to write none.
        record_tokens: token data in `<trainer.default_local_dir>/tokens`, such as `{every: 10, groups: 8}`; null to
            write none.
        max_tokens: most tokens of the whole episode after its prompt, at most `data.max_response_length`; null for
            `data.max_response_length`.
        seeded_sampling: give each request its own seed, derived from the seed of the run and the position of the reply.
            A resumed run then draws the same random numbers. False leaves them to the engine.
    """

    max_tokens_per_turn: Tokens
    on_truncated_turn: Literal["stop", "play"] = "stop"
    record_dir: str | None = None
    record_tokens: TokenRecording | None = None
    max_tokens: Tokens | None = None
    seeded_sampling: bool = True

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < self.max_tokens_per_turn:
            raise ConfigError(
                f"episode.max_tokens={self.max_tokens} must be at least episode.max_tokens_per_turn="
                f"{self.max_tokens_per_turn}, or null."
            )


@dataclass(frozen=True, slots=True, config=STRICT)
class PromptSettings:
    """Key of verl's section `data` that this package adds.

    Attributes:
        overlong_prompt: handling of a prompt with more than `data.max_prompt_length` tokens. `drop`: the episode is
            not played, has the stop reason `overlong_prompt`, and counts towards `env.max_env_error_rate`.
            `truncate_observation`: the middle of the first observation is cut so that the prompt fits.
    """

    overlong_prompt: OverlongPrompt = "drop"


@plain_dataclass(frozen=True, slots=True)
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
