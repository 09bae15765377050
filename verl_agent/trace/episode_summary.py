"""Numbers of an episode that metrics need, without its text: from the workers that play to the trainer."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Self, get_args

from verl_agent.errors import LOST_CONNECTION
from verl_agent.returns import reaches
from verl_agent.trace.behaviors import Played, action_checksums, mean_thought_length, turns_with_behaviors
from verl_agent.trace.turn_record import visible_info
from verl_agent.types import Episode, StopReason

INFO_PREFIX = "info/"
"""Prefix of the environment's measurements in `EpisodeSummary.to_fields()`."""


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """Numbers of an episode that the metrics need, without its text.

    Attributes:
        reward: return, in the environment's own units.
        attempts: number of attempts, >= 1.
        replays: number of environment errors after which an attempt replayed its actions.
        lost_connections: number of connections to an environment's server that ended during an attempt.
        behaviors: names of the behaviors that a turn shows, separated by commas.
        thought_length: mean number of characters that a reply has outside its action.
        oracle_turns: number of actions with which an oracle solves the task; None if none is known.
        generate_s: seconds spent waiting for the model.
        env_s: seconds spent waiting for the environment.
        category: category of the task, or "".
        info: measurements of the environment, summed over turns.
        env_label: label of its environment in a mixture; "" for a run with one environment.
        shaped_return: return after reward shaping; None where it is `reward`.
        actions: `action_checksums` of the episode.
        paused_s: seconds spent waiting for an update of the weights.
        task: id of the task.
        operated: True if a person intervened; see `Episode.operated`.
        solved_turns: turns until the task was solved; None if it was not.
        group: name of its group in a batch; "" before the batch is known.
    """

    reward: float
    success: bool
    turns: int
    max_turns: int
    stop: StopReason
    tokens: int = 0
    attempts: int = 1
    generate_s: float = 0.0
    env_s: float = 0.0
    category: str = ""
    info: Mapping[str, float] = field(default_factory=dict)
    env_label: str = ""
    shaped_return: float | None = None
    replays: int = 0
    lost_connections: int = 0
    behaviors: str = ""
    thought_length: float = 0.0
    oracle_turns: int | None = None
    actions: str = ""
    operated: bool = False
    paused_s: float = 0.0
    task: str = ""
    solved_turns: int | None = None
    group: str = ""

    @property
    def effective_return(self) -> float:
        """Return that the policy update uses."""
        return self.reward if self.shaped_return is None else self.shaped_return

    @property
    def valid(self) -> bool:
        """True if the episode measures the policy alone: `Episode.valid`, and nobody else intervened."""
        return self.stop.valid and not self.operated

    def to_fields(self) -> dict[str, float | int | str | bool]:
        """Return a flat dict of plain values, for transport between processes."""
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "info"}
        plain["stop"] = str(self.stop)
        plain = {name: value for name, value in plain.items() if value is not None}
        return plain | {INFO_PREFIX + key: value for key, value in self.info.items()}

    @classmethod
    def from_fields(cls, values: Mapping[str, float | int | str | bool]) -> Self:
        """Build a summary from the output of `to_fields`; other keys are ignored."""
        kinds = {one.name: (get_args(one.type) or (one.type,))[0] for one in fields(cls) if one.name in values}
        found = {name: kind(values[name]) for name, kind in kinds.items()}
        prefixed = {key: value for key, value in values.items() if key.startswith(INFO_PREFIX)}
        return cls(**found, info={key.removeprefix(INFO_PREFIX): float(value) for key, value in prefixed.items()})


def count_lost_connections(attempts: Iterable[Episode]) -> int:
    """Return the number of connections that ended during the attempts, also where a replay repaired it."""
    texts = [text for episode in attempts for text in (*episode.replays, episode.error)]
    return sum(text.startswith(LOST_CONNECTION) for text in texts)


def summarize_episode(
    episode: Episode,
    attempts: int = 1,
    replays: int = 0,
    env_label: str = "",
    shaped_return: float | None = None,
    lost_connections: int = 0,
) -> EpisodeSummary:
    """Summarize the last of `attempts` attempts at an episode, with the replays and lost connections of all."""
    played = Played.from_episode(episode)
    info_totals: dict[str, float] = defaultdict(float)
    for turn in episode.turns:
        for key, value in visible_info(turn.step).items() if turn.step else ():
            info_totals[key] += value
    return EpisodeSummary(
        reward=float(episode.reward),
        success=bool(episode.success),
        turns=len(episode.turns),
        max_turns=episode.max_turns,
        stop=episode.stop,
        tokens=sum(turn.reply.tokens for turn in episode.turns),
        attempts=attempts,
        generate_s=sum(turn.generate_s for turn in episode.turns),
        env_s=sum(turn.env_s for turn in episode.turns),
        category=episode.item.category,
        info=dict(info_totals),
        env_label=env_label,
        shaped_return=shaped_return,
        replays=replays,
        lost_connections=lost_connections,
        behaviors=",".join(turns_with_behaviors(played)),
        thought_length=mean_thought_length(played),
        oracle_turns=episode.oracle_turns,
        actions=action_checksums(episode),
        operated=episode.operated,
        paused_s=sum(turn.reply.paused_s for turn in episode.turns),
        task=episode.item.id,
        solved_turns=_turns_until_solved(episode),
    )


def _turns_until_solved(episode: Episode) -> int | None:
    """Return the number of turns after which the return first solved the task; None if the episode did not solve it."""
    if not episode.success:
        return None
    rewards = [turn.step.reward if turn.step else 0.0 for turn in episode.turns]
    counts = range(1, len(rewards) + 1)
    return next((count for count in counts if reaches(rewards[:count], episode.success_reward)), len(rewards))
