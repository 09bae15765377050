"""Judgement of a model on an episode: a score and a reason for each criterion of a rubric."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grade:
    """Score of one criterion.

    Attributes:
        score: share of the criterion that is fulfilled, 0 to 1.
        reason: explanation of the judge, a text of a model.
    """

    criterion: str
    weight: float
    score: float
    reason: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdict of a judge on an episode, or on one of its turns.

    Attributes:
        turn: number of the turn that has the reward, from 0.
        score: weighted mean of the grades, 0 to 1.
        reward: reward that follows, in units of `judge.weight`.
        replaced: reward of the environment that it replaces; None if it is added during training.
        model: name of the model that judged.
        cost_usd: price of the request in US dollars; None if it is unknown.
    """

    turn: int
    score: float
    reward: float
    grades: Sequence[Grade]
    replaced: float | None = None
    model: str = ""
    cost_usd: float | None = None
