"""Matches of a worker process: the sessions of one prompt meet in them, one for each trained seat.

verl plays `rollout.n` sessions of a prompt in one worker. In an arena with S trained seats, session i plays the trained
seat i mod S of match i div S. Each session returns its own rows with its own reward, so verl, the sampler and the
mini-batches need to know of no seats. Roles part the groups of estimators, see `locate_turns`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from verl_agent.config.algorithms import BUILT_IN, ESTIMATOR, GROUPED, find_estimator
from verl_agent.config.settings import RunEnv
from verl_agent.envs.arena import SEATS, Arena, seat_item
from verl_agent.envs.session import Session
from verl_agent.errors import ConfigError
from verl_agent.models.resolve import resolve_model
from verl_agent.rollout.matches import Match, SeatSession
from verl_agent.training.rollout_row import RolloutRow
from verl_agent.types import TaskItem

logger = logging.getLogger(__name__)
ROLLOUT = "actor_rollout_ref.rollout"
PlaySeat = Callable[[TaskItem, Match, int], Awaitable[None]]
"""Plays a seat that is not trained: its task, match and number."""


@dataclass(frozen=True, slots=True)
class TakenSeat:
    """Seat of one session of verl."""

    match: Match
    seat: int
    item: TaskItem
    """Task of the seat's episode."""
    role: str
    """Game and seat, by which estimators part groups and baselines."""

    def new_session(self) -> Session:
        """Return the session of the seat."""
        return SeatSession(self.match, self.seat)


@dataclass(slots=True)
class Matches:
    """Open matches of one environment in a worker process."""

    arena: Arena
    label: str
    _open: dict[tuple[str, int], tuple[Match, set[int]]] = field(default_factory=dict)
    _others: set[asyncio.Task[None]] = field(default_factory=set)

    def number(self, row: RolloutRow) -> int:
        """Return the number of a row's match among those of its prompt, from 0."""
        return row.sample // len(self.arena.trained_seats)

    def join(self, row: RolloutRow, item: TaskItem, new_session: Callable[[], Session], play: PlaySeat) -> TakenSeat:
        """Return the place of a row's session; the first one of a match begins it.

        Args:
            new_session: factory of sessions of the arena.
            play: plays the seats of frozen models and of APIs.
        """
        trained, arena = self.arena.trained_seats, self.arena
        number, seat = self.number(row), trained[row.sample % len(trained)]
        key = row.group, number
        if key not in self._open:
            match = Match(new_session(), item, f"{row.group}.{number}", arena.policy_seats)
            self._open[key] = match, set(trained)
            for other in set(arena.policy_seats) - set(trained):
                task = asyncio.create_task(self._play_other(play, item, match, other))
                self._others.add(task)
                task.add_done_callback(self._others.discard)
        match, missing = self._open[key]
        missing.discard(seat)
        if not missing:
            del self._open[key]
        own = seat_item(item, arena, seat, match.name)
        return TakenSeat(match, seat, own, f"{self.label}: {own.category}")

    async def _play_other(self, play: PlaySeat, item: TaskItem, match: Match, seat: int) -> None:
        try:
            await play(seat_item(item, self.arena, seat, match.name), match, seat)
        except Exception as error:  # boundary: a policy that is not trained must not leave the others waiting
            logger.exception("%s cannot play on", self.arena.players[seat])
            await match.fail(f"{self.arena.seat_names[seat]} cannot play on: {error}")
        finally:
            await match.leave(seat)


def check_comparison(estimator: str, samples: int, val_samples: int, run_env: RunEnv, filters: bool = False) -> None:
    """Check that the episodes of a task begin alike where the estimator compares them, and suit the seats of an arena.

    Args:
        samples: `rollout.n`.
        val_samples: `rollout.val_kwargs.n`.
        filters: `algorithm.filter_groups.enable`.

    Raises:
        ConfigError: episodes may begin differently, a frozen checkpoint does not exist, the result of a match would be
            bootstrapped, trained seats would be compared with one another, or episodes do not divide into matches.
    """
    if estimator in GROUPED and not run_env.live.seeded:
        others = ", ".join(name for name in BUILT_IN if name not in GROUPED)
        raise ConfigError(
            f"{ESTIMATOR}={estimator!r} compares the episodes of one task, but env {run_env.env.name!r} ignores seeds: "
            f"two episodes of a task differ. Choose another estimator ({others}), let the environment use the seed, or "
            "set env.options.allow_unseeded=true if it has this option."
        )
    arena = run_env.live
    if isinstance(arena, Arena):
        for one in arena.players:
            if one.kind == "frozen":
                resolve_model(one.name, key=SEATS)
        if len(arena.policy_seats) > 1 and run_env.credit.truncated == "bootstrap":
            raise ConfigError(
                f"credit.truncated='bootstrap' is not allowed with {SEATS} of env {run_env.env.name!r}: a limit ends "
                "the match, and the return has its result already. Allowed: as_is, drop."
            )
    if not isinstance(arena, Arena) or (seats := len(arena.trained_seats)) == 1:
        return
    if not find_estimator(estimator).parts_seats:
        able = ", ".join(name for name, one in BUILT_IN.items() if one.parts_seats)
        raise ConfigError(
            f"{ESTIMATOR}={estimator!r} compares the episodes of all seats with one another, but {SEATS} of env "
            f"{run_env.env.name!r} has {seats} trained seats. Allowed: {able}. Or train one seat: give the others to "
            "scripts or to frozen checkpoints."
        )
    if filters:
        raise ConfigError(
            f"algorithm.filter_groups.enable=true is not allowed with {seats} trained seats ({SEATS} of env "
            f"{run_env.env.name!r}): it compares the returns of all seats with one another. Set it to false, or "
            "use trainer.v1.sampler.sampler_kwargs.skip_uniform=true, which compares those of each seat."
        )
    needed = {f"{ROLLOUT}.n": (samples, estimator in GROUPED), f"{ROLLOUT}.val_kwargs.n": (val_samples, False)}
    for key, (count, grouped) in needed.items():
        least = 2 * seats if grouped else seats
        if count % seats or count < least:
            raise ConfigError(
                f"{key}={count} is not allowed: it counts episodes, and a match has {seats}, one for each trained "
                f"seat. Allowed: multiples of {seats} from {least} on."
            )
