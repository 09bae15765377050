"""What an episode teaches: its return, scaled and with costs, and on which turns it lies.

Knows neither tokens nor torch. The raw score stays what metrics, records and validation report.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.types import Episode

PLACES = ("outcome", "turn")
ANCHORS = ("observation", "history")


@dataclass(frozen=True, slots=True)
class RewardShaping:
    """Section `credit`. The defaults leave an episode's return as it is, on its last turn.

    Attributes:
        range: lowest and highest return of the environment, mapped onto 0 to 1; None leaves its units.
        place: `outcome`: all that an episode earned lies on its last turn; `turn`: each turn keeps its own.
        step_cost: taken off for each turn, in units of the scaled return, >= 0.
        invalid_action_cost: taken off for each action that the environment could not read, likewise.
        turn_gamma: discount a turn, above 0 to 1, of the estimators that look at turns (`turn_returns`, `gigpo`).
        step_weight: of GiGPO's advantage among actions from the same state, >= 0 (its omega).
        anchor: what is the same state to GiGPO: `observation`: what the action answers, as in its paper, right where
            that shows the state; `history`: all actions and observations before it, where it is only a message.
    """

    range: Sequence[float] | None = None
    place: str = "outcome"
    step_cost: float = 0.0
    invalid_action_cost: float = 0.0
    turn_gamma: float = 1.0
    step_weight: float = 1.0
    anchor: str = "observation"

    def __post_init__(self) -> None:
        if self.place not in PLACES:
            raise ConfigError(f"credit.place={self.place!r} is not known. {did_you_mean(self.place, PLACES)}")
        if self.anchor not in ANCHORS:
            raise ConfigError(f"credit.anchor={self.anchor!r} is not known. {did_you_mean(self.anchor, ANCHORS)}")
        if self.range is not None and not (len(self.range) == 2 and self.range[0] < self.range[1]):
            raise ConfigError(
                f"credit.range must be the lowest and the highest return, such as [0, 100], or null; got "
                f"{list(self.range)}."
            )
        for name in ("step_cost", "invalid_action_cost", "step_weight"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"credit.{name} must be >= 0, got {getattr(self, name)}.")
        if not 0 < self.turn_gamma <= 1:
            raise ConfigError(f"credit.turn_gamma must be above 0 and at most 1, got {self.turn_gamma}.")

    def rewards(self, episode: Episode) -> list[float]:
        """What each turn of an episode is credited with; their sum is what the episode teaches.

        Returns:
            One value for each turn; none for an episode without a turn.
        """
        if not episode.turns:
            return []
        low, high = self.range or (0.0, 1.0)
        credited = []
        for turn in episode.turns:
            reward, invalid = (turn.step.reward, turn.step.info.get("invalid_action", 0.0)) if turn.step else (0.0, 0.0)
            credited.append(reward / (high - low) - self.step_cost - self.invalid_action_cost * invalid)
        credited[-1] -= low / (high - low)
        return credited if self.place == "turn" else [0.0] * (len(credited) - 1) + [sum(credited)]


@dataclass(frozen=True, slots=True)
class TurnRewards:
    """What estimators need to know of the turns of an episode, in the order of its replies.

    Attributes:
        rewards: of each turn, see `RewardShaping.rewards`.
        anchors: of each turn, a key that is the same where two turns start from the same state.
        first: number of the first turn in its episode; above 0 where an episode is trained on in several pieces.
    """

    rewards: Sequence[float]
    anchors: Sequence[str]
    first: int = 0

    def split(self, counts: Sequence[int]) -> list["TurnRewards"]:
        """The same in pieces, for an episode that is trained on in pieces.

        Args:
            counts: turns of each piece, in order.

        Raises:
            ValueError: the pieces do not hold all turns; a bug.
        """
        if sum(counts) != len(self.rewards):
            raise ValueError(f"the rows of an episode hold {list(counts)} replies, it has {len(self.rewards)} turns.")
        pieces, begin = [], 0
        for count in counts:
            end = begin + count
            pieces.append(TurnRewards(self.rewards[begin:end], self.anchors[begin:end], self.first + begin))
            begin = end
        return pieces

    def to_fields(self) -> dict[str, list[float] | list[str] | int]:
        """Plain values, the form in which it travels between processes."""
        return {"rewards": list(self.rewards), "anchors": list(self.anchors), "first": self.first}


def turn_rewards(episode: Episode, credit: RewardShaping) -> TurnRewards:
    """Rewards and anchors of a whole episode."""
    return TurnRewards(credit.rewards(episode), _anchors(episode, credit.anchor))


def _anchors(episode: Episode, kind: str) -> list[str]:
    """Keys of the states in which the turns begin; a reply that holds no action leaves the state as it was."""
    seen, anchors = "", []
    for turn in episode.turns:
        anchors.append(hashlib.sha256(seen.encode()).hexdigest()[:16])
        if turn.action is not None and turn.step:
            before = f"{seen}\n{turn.action}\n" if kind == "history" else ""
            seen = before + turn.step.observation
    return anchors
