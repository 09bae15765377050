"""Play of generic attacks on the reward of an environment, and their comparison with random actions."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import comb
from statistics import fmean
from typing import TypeAlias

import numpy as np
from typing_extensions import override

from verl_agent.agents.registry import make_agent
from verl_agent.agents.settings import AgentSettings
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.hosts.local import local_pool
from verl_agent.envs.session import PooledEnv, Session
from verl_agent.envs.settings import EnvSettings, HostSettings
from verl_agent.envs.tasks import sample_tasks
from verl_agent.envs.testing.check import unpicklable
from verl_agent.errors import ConfigError
from verl_agent.evaluation.attacks import ATTACKS, MAX_DUMP, Attack, AttackerKnowledge, cycle
from verl_agent.evaluation.policies import Demonstrated, demonstrated_actions, other_actions
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.oracle import demonstration_actions
from verl_agent.rollout.policy import Policy
from verl_agent.rollout.sessions import WrappedSession
from verl_agent.types import Episode, Message, Reply, StepResult, StopReason, TaskItem

RANDOM_EPISODES = 8
"""Random episodes of each task, with which an attack is compared."""
CONCURRENT = 8
"""Episodes that are played at once."""
PERMUTATIONS = 20_000
LEVEL = 0.05
"""Probability of a finding by chance in an environment without a flaw; it is divided by the number of comparisons."""
CONFIDENCE = 0.95
REPORT_S = 5.0
"""Seconds between two lines about the progress."""


class EndlessSession(WrappedSession):
    """Session that continues after the end of its task, and pays only what is earned there."""

    _ended = False

    @override
    async def step(self, action: str) -> StepResult:
        result, ended = await super().step(action), self._ended
        self._ended = ended or result.terminated
        return replace(result, reward=result.reward if ended else 0.0, terminated=False)


@dataclass(slots=True)
class AttackPolicy(Policy):
    """Policy of one episode of an attack."""

    attack: Attack
    known: AttackerKnowledge

    @override
    async def reply(self, messages: Sequence[Message]) -> Reply:
        action = self.attack.act(self.known, messages)[:MAX_DUMP]
        return Reply(action if self.attack.raw else self.known.action_format.format(action))


@dataclass(frozen=True, slots=True)
class Result:
    """Episodes of one attack, compared with its baseline.

    Attributes:
        baseline: mean return of the policy with which it is compared.
        above: tasks on which it earned more than every episode of that policy.
        errors: number of its episodes that ended with an environment error, which training leaves out.
        chance: probability of such a return, or of so many errors, if the attack were no better than random actions;
            0 if its baseline is fixed and surpassed.
    """

    attack: Attack
    mean: float
    baseline: float
    above: list[str]
    errors: int
    chance: float


@dataclass(frozen=True, slots=True)
class AttackReport:
    """Results of all attacks.

    Attributes:
        of: number of tasks of the environment.
    """

    tasks: int
    of: int
    results: list[Result]

    @property
    def findings(self) -> list[Result]:
        """Attacks that earn more than chance explains."""
        return [result for result in self.results if result.chance < LEVEL / len(self.results)]

    @property
    def enough(self) -> bool:
        """True if an attack that earns more than all random episodes of every task would be a finding."""
        return (RANDOM_EPISODES + 1.0) ** -self.tasks < LEVEL / max(1, len(self.results))

    @property
    def families(self) -> list[tuple[Result, int]]:
        """The strongest attack of each family, and the number of tasks on which any of the family earned more."""
        grouped: dict[str, list[Result]] = {}
        for result in self.results:
            grouped.setdefault(result.attack.family, []).append(result)
        return [
            (
                min(results, key=lambda one: (one.chance, -len(one.above), one.baseline - one.mean)),
                len({task for one in results for task in one.above}),
            )
            for results in grouped.values()
        ]


def upper_limit(successes: int, trials: int) -> float:
    """Return the upper end of the one-sided interval of Clopper and Pearson (1934) for a share, at `CONFIDENCE`.

    Without a success it is `1 - 0.05^(1/n)`, about 3/n.
    """
    low, high = successes / trials, 1.0
    for _ in range(40):
        share = (low + high) / 2
        at_most = sum(comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(successes + 1))
        low, high = (share, high) if at_most > 1 - CONFIDENCE else (low, share)
    return high if successes < trials else 1.0


def chance(attacked: Sequence[float], random_values: Sequence[Sequence[float]]) -> float:
    """Return the probability of such a sum or a larger one if the attack were one more random episode of each task.

    A permutation test within tasks: each value of a task is equally likely to be the attack's.
    """
    pooled = np.column_stack([np.asarray(attacked), np.asarray(random_values)])
    observed = pooled[:, 0].sum()
    if observed <= pooled.mean(axis=1).sum():
        return 1.0
    picks = np.random.default_rng(0).integers(pooled.shape[1], size=(PERMUTATIONS, len(pooled)))
    sums = pooled[np.arange(len(pooled)), picks].sum(axis=1)
    return float((1 + (sums >= observed - 1e-9).sum()) / (1 + PERMUTATIONS))


Played: TypeAlias = dict[str, list[Episode]]
"""Episodes of one task: the random ones, the demonstration if there is one, and one for each attack, by its name."""


def attack_env(
    name: str,
    env: EnvAdapter,
    items: int,
    turns: int,
    limit_s: float,
    report: Callable[[str], None] = lambda line: None,
) -> AttackReport:
    """Attack the reward of an environment on tasks of all splits, drawn at random.

    Args:
        limit_s: seconds after which no further task begins; at least one is attacked.
        report: receives a line at the start, and after a task if `REPORT_S` seconds have passed since the last one.
    """
    everything = list({item.id: item for split in env.splits for item in env.tasks(split)}.values())
    chosen = sample_tasks(everything, items * len(env.splits))
    played = asyncio.run(_play_tasks(name, env, chosen, turns, limit_s, report))
    results = [compared(attack, list(played.values())) for attack in ATTACKS]
    return AttackReport(len(played), len(everything), [result for result in results if result is not None])


async def _play_tasks(
    name: str, env: EnvAdapter, chosen: Sequence[TaskItem], turns: int, limit_s: float, report: Callable[[str], None]
) -> dict[str, Played]:
    """Play the tasks one after another, the episodes of each side by side."""
    hosts = HostSettings(where="inline") if unpicklable(env) else HostSettings(where="local")
    pool = local_pool(env, EnvSettings(name, hosts=hosts))
    try:
        demonstrated = demonstrated_actions(env, chosen)
    except ConfigError:
        demonstrated = []
    began, played = time.monotonic(), dict[str, Played]()
    said, until = began, began + limit_s
    report(f"attacking {len(chosen)} tasks, for at most {limit_s:g} s and the task that is played then")
    try:
        for item in chosen:
            if played and time.monotonic() > until:
                break
            played[item.id] = await _play_task(
                item, partial(PooledEnv, env, pool), _known(item, env, demonstrated, turns)
            )
            if time.monotonic() > said + REPORT_S:
                said = time.monotonic()
                report(f"{len(played)} of {len(chosen)} tasks after {said - began:.0f} s")
    finally:
        await pool.shutdown()
    return played


def _known(item: TaskItem, env: EnvAdapter, demonstrated: Demonstrated, turns: int) -> AttackerKnowledge:
    vocabulary = other_actions(item, demonstrated) if demonstrated else []
    try:
        demonstration = [demo.action for demo in demonstration_actions(env, item)]
    except ConfigError:
        demonstration = []
    return AttackerKnowledge(env.action_format, vocabulary, demonstration, turns)


async def _play_task(item: TaskItem, new_session: Callable[[], Session], known: AttackerKnowledge) -> Played:
    places, played = asyncio.Semaphore(CONCURRENT), Played()

    async def episode(name: str, attack: Attack, limit: int) -> None:
        async with places:
            session = new_session() if attack.baseline != "end" else EndlessSession(new_session())
            agent = make_agent(AgentSettings("raw" if attack.raw else "act"), known.action_format)
            one = await play_episode(item, session, agent, AttackPolicy(attack, known), EpisodeLimits(limit, None))
            played.setdefault(name, []).append(one)

    long = max(known.turns, 2 * len(known.demonstration) + 2)
    works = [
        episode("random", Attack("random", "", partial(_random, random.Random(f"{item.id} {n}"))), known.turns)
        for n in range(RANDOM_EPISODES)
    ]
    if known.demonstration and new_session().deterministic:
        again = Attack("demonstration", "", lambda known, messages: cycle(known.demonstration, messages))
        works.append(episode("demonstration", again, long))
    for attack in ATTACKS:
        if known.demonstration or not attack.needs_demonstration:
            limit = long if attack.needs_demonstration else min(known.turns, attack.most_turns)
            works.append(episode(str(attack), attack, limit))
    await asyncio.gather(*works)
    return played


def _random(draws: random.Random, known: AttackerKnowledge, messages: Sequence[Message]) -> str:
    return draws.choice(known.vocabulary or known.listed(messages[-1]["content"]) or [""])


def compared(attack: Attack, played: Sequence[Played]) -> Result | None:
    """Return the comparison of an attack with its baseline; None if no task has one."""
    tasks = [task for task in played if str(attack) in task]
    if not tasks:
        return None
    episodes = [task[str(attack)][0] for task in tasks]
    if attack.baseline == "end":
        others = [[0.0] for _ in tasks]
    else:
        others = [[one.reward for one in task[attack.baseline]] for task in tasks]
    above = [
        episode.item.id for episode, values in zip(episodes, others, strict=True) if episode.reward > max(values) + 1e-9
    ]
    failed = [float(episode.stop is StopReason.ENV_ERROR) for episode in episodes]
    others_failed = [[float(one.stop is StopReason.ENV_ERROR) for one in task["random"]] for task in tasks]
    by_return = chance([episode.reward for episode in episodes], others)
    if attack.baseline != "random":
        by_return = 0.0 if above else 1.0
    return Result(
        attack,
        fmean(episode.reward for episode in episodes),
        fmean(value for values in others for value in values),
        above,
        int(sum(failed)),
        min(by_return, chance(failed, others_failed)),
    )
