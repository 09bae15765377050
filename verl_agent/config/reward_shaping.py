"""Reward shaping: the return of an episode, scaled, with costs, and placed on its turns.

Independent of tokens and of torch. Metrics, records and validation report the raw score.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from verl_agent.config.algorithms import BY_TOKEN, BY_TURN, ESTIMATOR, TURN_CRITICS
from verl_agent.errors import ConfigError
from verl_agent.returns import sum_rewards
from verl_agent.sections import Needs, OnResume, settings
from verl_agent.types import Episode

Cost = Annotated[float, Field(ge=0)]
Truncated = Literal["as_is", "drop", "bootstrap"]
"""Treatment of truncated episodes, see `RewardShaping.truncated`."""


@settings("credit", OnResume("play"))
class RewardShaping:
    """Reward shaping, for reinforcement learning. The defaults place an episode's return on its last turn."""

    range: Annotated[Sequence[float], Field(min_length=2, max_length=2)] | None = None
    """Lowest and highest return of the environment, mapped onto 0 to 1; null to keep the return's unit."""
    place: Annotated[Literal["outcome", "turn"], Needs(ESTIMATOR, *BY_TOKEN, *BY_TURN)] = "outcome"
    """Turns that receive the reward: `outcome` puts the whole return on the last turn; `turn` keeps each reward on the
    turn that earned it."""
    step_cost: Cost = 0.0
    """Cost of each turn, in units of the scaled return."""
    invalid_action_cost: Cost = 0.0
    """Cost of each action that the environment could not read, in units of the scaled return."""
    turn_gamma: Annotated[float, Field(gt=0, le=1), Needs(ESTIMATOR, *BY_TURN)] = 1.0
    """Discount per turn of the estimators that use turn rewards (`turn_returns`, `gigpo`, `turn_gae`)."""
    step_weight: Annotated[Cost, Needs(ESTIMATOR, "gigpo")] = 1.0
    """Weight of GiGPO's advantage among actions from the same state (the paper's omega)."""
    anchor: Annotated[Literal["observation", "history"], Needs(ESTIMATOR, "gigpo")] = "observation"
    """Key of a state in GiGPO: `observation` is the observation that the action answers, as in the paper; it suits
    environments whose observations show the state. `history` is all actions and observations before it; it suits
    environments whose observations are short messages."""
    turn_lam: Annotated[float, Field(ge=0, le=1), Needs(ESTIMATOR, *TURN_CRITICS)] = 1.0
    """Lambda per turn of `turn_gae`."""
    truncated: Truncated = "as_is"
    """Treatment of episodes that a limit on turns or tokens ended unsolved. `as_is` trains on their return. `drop`
    leaves them out of the loss; they still count in the statistics of their group. `bootstrap` adds the critic's value
    of the last state to their return."""

    options: Mapping[str, Any] = Field(default_factory=dict)
    """Keyword arguments of an estimator of another package."""

    def __post_init__(self) -> None:
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ConfigError(
                f"credit.range={list(self.range)} is not allowed. Allowed: the lowest and the highest return, such as "
                "[0, 100], or null."
            )

    def rewards(self, episode: Episode) -> list[float]:
        """Return the shaped reward of each turn; their sum is the shaped return of the episode.

        Returns:
            One value for each turn; an empty list for an episode without turns.
        """
        if not episode.turns:
            return []
        low, high = self.range or (0.0, 1.0)
        shaped = []
        for turn in episode.turns:
            reward, invalid = (turn.step.reward, turn.step.info.get("invalid_action", 0.0)) if turn.step else (0.0, 0.0)
            shaped.append(reward / (high - low) - self.step_cost - self.invalid_action_cost * invalid)
        shaped[-1] -= low / (high - low)
        for judgement in episode.judgements:
            shaped[judgement.turn] += judgement.reward if judgement.replaced is None else 0.0
        return shaped if self.place == "turn" else [0.0] * (len(shaped) - 1) + [sum_rewards(shaped)]


@dataclass(frozen=True, slots=True)
class TurnRewards:
    """Turn data of one training row that estimators use, in the order of the replies.

    Attributes:
        rewards: shaped reward of each turn, see `RewardShaping.rewards`.
        anchors: key of the state in which each turn begins; equal keys mean equal states.
        first: number of the row's first turn in its episode; above 0 if the episode makes several rows.
        truncated: treatment of the row; `as_is` for an episode that is not truncated.
        role: game and seat in an arena with several policies, by which groups and baselines are parted; else "".
    """

    rewards: Sequence[float]
    anchors: Sequence[str]
    first: int = 0
    truncated: Truncated = "as_is"
    role: str = ""

    def split(self, counts: Sequence[int]) -> list["TurnRewards"]:
        """Split the turns of an episode into those of its training rows.

        Only the last row of an episode is bootstrapped.

        Raises:
            ValueError: the rows do not hold all turns, which is a bug.
        """
        if sum(counts) != len(self.rewards):
            raise ValueError(f"the rows of an episode hold {list(counts)} replies, it has {len(self.rewards)} turns.")
        rows, begin = [], 0
        for number, count in enumerate(counts, start=1):
            end = begin + count
            treatment = "as_is" if self.truncated == "bootstrap" and number < len(counts) else self.truncated
            part = self.rewards[begin:end], self.anchors[begin:end], self.first + begin, treatment, self.role
            rows.append(TurnRewards(*part))
            begin = end
        return rows

    def to_fields(self) -> dict[str, Any]:
        """Return the fields as plain values, which can be sent between processes."""
        return asdict(self)


def turn_rewards(episode: Episode, credit: RewardShaping, role: str = "") -> TurnRewards:
    """Return rewards, anchors and treatment of a whole episode."""
    treatment = credit.truncated if episode.truncated else "as_is"
    return TurnRewards(credit.rewards(episode), _anchors(episode, credit.anchor), truncated=treatment, role=role)


def _anchors(episode: Episode, kind: str) -> list[str]:
    """Return the key of the state in which each turn begins; a reply without an action does not change the state.

    Prompts differ between episodes of one task where another seat of an arena has moved before.
    """
    seen, anchors = "\n".join(message["content"] for message in episode.messages[: episode.prompt_length]), []
    for turn in episode.turns:
        anchors.append(hashlib.sha256(seen.encode()).hexdigest()[:16])
        if turn.action is not None and turn.step:
            before = f"{seen}\n{turn.action}\n" if kind == "history" else ""
            seen = before + turn.step.observation
    return anchors
