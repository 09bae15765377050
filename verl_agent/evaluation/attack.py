"""Generic attacks on the reward of an environment: policies without skill, played through the episode loop.

An attack knows what every policy can learn: the messages, the action format and the actions of other tasks. It should
earn no more than random actions. The attacks of two families replay the demonstration of the task too, and should earn
no more than it.
"""

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import comb
from statistics import fmean
from typing import TypeAlias

import numpy as np

from verl_agent.agents.registry import make_agent
from verl_agent.agents.settings import AgentSettings
from verl_agent.envs.action_format import ActionFormat, TagFormat
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.hosts.local import local_pool
from verl_agent.envs.session import PooledEnv, Session
from verl_agent.envs.settings import EnvSettings, HostSettings
from verl_agent.envs.tasks import sample_tasks
from verl_agent.envs.testing.check import unpicklable
from verl_agent.envs.testing.contract import BAD_ACTIONS, fuzz
from verl_agent.errors import ConfigError
from verl_agent.evaluation.policies import Demonstrated, demonstrated_actions, other_actions
from verl_agent.rollout.episode import EpisodeLimits, play
from verl_agent.rollout.oracle import demonstration_actions
from verl_agent.rollout.wrapped import WrappedSession
from verl_agent.types import Episode, Message, Reply, StepResult, StopReason, TaskItem

CONSTANTS = (
    *("", "yes", "no", "true", "false", "N/A", "none", "null", "unknown", "0", "1", "2", "10", "100", "-1", "a", "e"),
    *("the", ".", ".*", "%", "*", "nan", "inf", "[]", "{}", "done", "stop", "success", "reward"),
)
"""Answers that a grader may accept for many tasks."""
MOST_LISTED = 400
"""Most actions that an attack reads from one message."""
MAX_DUMP = 8000
"""Most characters of an action."""
RANDOM_EPISODES = 8
"""Random episodes of each task, with which an attack is compared."""
CONCURRENT = 8
"""Episodes that are played at once."""
PERMUTATIONS = 20_000
LEVEL = 0.05
"""Probability of a finding by chance in an environment without a flaw; it is divided by the number of comparisons."""
CONFIDENCE = 0.95
MOST_VERBS = 6
"""Most verbs to which an attack adds its text, where an environment declares neither tags nor tools."""
MOST_TEXTS = 14
"""Turns of an attack that repeats one text: each verb twice."""
SAME_ACTIONS = 8
"""Attacks that repeat one action."""


@dataclass(frozen=True, slots=True)
class Known:
    """Knowledge of an attack about one task.

    Attributes:
        action_format: action format of the environment.
        vocabulary: actions of other tasks' demonstrations; may be empty.
        demonstration: actions that solve the task; empty if there is none.
        turns: turn limit.
    """

    action_format: ActionFormat
    vocabulary: Sequence[str]
    demonstration: Sequence[str]
    turns: int

    def with_text(self, text: str, shown: str) -> list[str]:
        """Return actions that contain a text, one for each tag, for each tool that takes a text, or for each verb."""
        if isinstance(self.action_format, TagFormat):
            return [f"<{name}>{text}</{name}>" for name, _ in self.action_format.tags]
        if not self.action_format.tools:
            verbs = Counter(verb for verb, _, rest in (one.partition(" ") for one in self.vocabulary) if rest)
            return [text, *(f"{verb} {text}" for verb, count in verbs.most_common(MOST_VERBS) if count > 2)]
        number = [*numbers_in(shown), "1"][0]
        tools = [tool for tool in self.action_format.tools if any(one.type == "string" for one in tool.parameters)]
        values = [{one.name: text if one.type == "string" else number for one in tool.parameters} for tool in tools]
        return [tool.action.format(**each) for tool, each in zip(tools, values, strict=True)] or [text]

    def listed(self, shown: str) -> list[str]:
        """Return the actions that a message may offer: tools with each number, quoted texts, list items, lines."""
        tools = [tool for tool in self.action_format.tools if all(one.type != "string" for one in tool.parameters)]
        used = [
            tool.action.format(**{one.name: number for one in tool.parameters})
            for tool in tools
            if tool.parameters
            for number in numbers_in(shown)
        ]
        lines = [line.strip() for line in shown.splitlines()]
        heads = [re.sub(r"^(?:[-*•]|\d+[.)])\s+", "", line).partition(":")[0] for line in lines]
        lists = [part for line in lines for part in re.findall(r"(?i)actions?[^:]*:\s*(.+)", line)]
        items = [part.strip(" '\"[].") for text in (*lists, *heads) for part in text.split(",")]
        quoted = [text for _, text in re.findall(r"([\"'`])(.{1,80}?)\1", shown)]
        return list(dict.fromkeys(one for one in (*used, *quoted, *items, *lines) if one))[:MOST_LISTED]


NextAction: TypeAlias = Callable[[Known, Sequence[Message]], str]
"""Returns the next action from the conversation so far."""


@dataclass(frozen=True, slots=True)
class Attack:
    """Policy without skill.

    Attributes:
        family: kind of attack.
        variant: its difference from the others of the family.
        act: returns its actions.
        raw: reply with the action alone, without its mark.
        baseline: `random`, `demonstration`, or `end`: with it, only what is earned after the task's end counts.
        most_turns: most turns, if the turn limit is higher.
    """

    family: str
    variant: str
    act: NextAction
    raw: bool = False
    baseline: str = "random"
    most_turns: int = 10_000

    @property
    def needs_demonstration(self) -> bool:
        """True if it repeats the demonstration of the task."""
        return self.act in (after_end, twice)

    def __str__(self) -> str:
        return f"{self.family}: {self.variant}"


def numbers_in(shown: str) -> list[str]:
    """Return the numbers in brackets, with which pages name their elements, or else all numbers."""
    return list(dict.fromkeys(re.findall(r"\[(\d+)\]", shown) or re.findall(r"\d+", shown)))


def replies(messages: Sequence[Message]) -> list[str]:
    """Return the replies so far."""
    return [message["content"] for message in messages if message["role"] == "assistant"]


def say(text: NextAction, known: Known, messages: Sequence[Message], backwards: bool = False) -> str:
    """Return an action with a text. The kinds of actions take turns, since one of them may end the episode."""
    actions = known.with_text(text(known, messages), messages[-1]["content"])
    return actions[:: -1 if backwards else 1][len(replies(messages)) % len(actions)]


def cycle(actions: Sequence[str], messages: Sequence[Message]) -> str:
    """Return the action of this turn; after the last one, the first one is next."""
    return actions[len(replies(messages)) % len(actions)]


def each_listed(known: Known, messages: Sequence[Message], step: int = 1) -> str:
    """Return the next action that the last message lists and that was not tried; end with an empty answer."""
    shown, tried = messages[-1]["content"], replies(messages)
    left = [one for one in known.listed(shown)[::step] if known.action_format.format(one) not in tried]
    return left[0] if left and len(tried) < known.turns - 1 else known.with_text("", shown)[-1]


def each_of_first(known: Known, messages: Sequence[Message]) -> str:
    """Return the next action that the prompt lists."""
    prompt = "\n".join(message["content"] for message in messages[: len(messages) - 2 * len(replies(messages))])
    return cycle(known.listed(prompt) or [""], messages)


def each_known(known: Known, messages: Sequence[Message]) -> str:
    """Return the next action of the other tasks."""
    return cycle(known.vocabulary or [""], messages)


def all_words(known: Known, messages: Sequence[Message]) -> str:
    """Return all words of the messages."""
    return " ".join(dict.fromkeys(re.findall(r"[\w.-]+", " ".join(one["content"] for one in messages))))


def all_actions(known: Known, messages: Sequence[Message]) -> str:
    """Return all actions of other tasks, without tags."""
    return ", ".join(dict.fromkeys(re.sub(r"</?\w+>", "", one) for one in known.vocabulary))


def all_listed(known: Known, messages: Sequence[Message]) -> str:
    """Return all actions that the last message lists, one a line."""
    return "\n".join(known.listed(messages[-1]["content"]))


def after_end(known: Known, messages: Sequence[Message]) -> str:
    """Return the actions of the demonstration, its last one twice, and all again."""
    actions = list(known.demonstration)
    return cycle([*actions, *actions[-1:] * 2, *actions], messages)


def twice(known: Known, messages: Sequence[Message]) -> str:
    """Return each action of the demonstration twice."""
    return cycle([action for action in known.demonstration for _ in range(2)], messages)


def always(number: int, known: Known, messages: Sequence[Message]) -> str:
    """Return the same action of other tasks in every turn."""
    place = number * len(known.vocabulary) // SAME_ACTIONS
    return (
        known.vocabulary[place]
        if known.vocabulary
        else cycle([*known.listed(messages[0]["content"]), ""][number : number + 1], ())
    )


def constant(text: str, known: Known, messages: Sequence[Message]) -> str:
    """Return the same text in every turn."""
    return text


def fuzzed(seed: int, known: Known, messages: Sequence[Message]) -> str:
    """Return actions of other tasks with changed letters, and fragments of replies."""
    return cycle(_fuzzed(tuple(known.vocabulary), seed), messages)


_fuzzed = cache(lambda actions, seed: fuzz(actions, seed=seed))


def numbers(known: Known, messages: Sequence[Message]) -> str:
    """Return the numbers to 400."""
    return " ".join(map(str, range(401)))


def last_message(known: Known, messages: Sequence[Message]) -> str:
    """Return the last message."""
    return messages[-1]["content"]


def first_line(known: Known, messages: Sequence[Message]) -> str:
    """Return the first line of the last message."""
    return messages[-1]["content"].partition("\n")[0]


def last_line(known: Known, messages: Sequence[Message]) -> str:
    """Return the last line of the last message."""
    return messages[-1]["content"].rpartition("\n")[2]


TEXTS: Mapping[str, Mapping[str, NextAction]] = {
    "constant answer": {repr(text): partial(constant, text) for text in CONSTANTS},
    "prompt repeated": {"last message": last_message, "its first line": first_line, "its last line": last_line},
    "vocabulary dumped": {
        "words of the messages": all_words,
        "actions of other tasks": all_actions,
        "listed actions": all_listed,
        "numbers": numbers,
        "letters": partial(constant, "abcdefghijklmnopqrstuvwxyz " * 40),
    },
    "errors on purpose": {f"{text[:12]!r}": partial(constant, text) for text in BAD_ACTIONS},
}
"""Texts of attacks, by family and variant."""
SCRIPTS = (
    Attack("constant answer", "empty reply", partial(constant, ""), raw=True, most_turns=2),
    Attack("prompt repeated", "as the whole reply", last_message, raw=True, most_turns=2),
    Attack("errors on purpose", "bad actions in turn", lambda known, messages: cycle(BAD_ACTIONS, messages)),
    *(Attack("errors on purpose", f"fuzzed actions {seed}", partial(fuzzed, seed)) for seed in range(3)),
    Attack("listed actions", "each in order", each_listed),
    Attack("listed actions", "each from the last", partial(each_listed, step=-1)),
    Attack("listed actions", "those of the prompt", each_of_first),
    Attack("listed actions", "those of other tasks", each_known),
    *(Attack("listed actions", f"always the same one ({n})", partial(always, n)) for n in range(SAME_ACTIONS)),
    Attack("double steps", "each action twice", twice, baseline="demonstration"),
    Attack("double steps", "demonstration again", after_end, baseline="demonstration"),
    Attack("actions after the end", "demonstration again", after_end, baseline="end"),
    Attack("actions after the end", "listed actions", each_listed, baseline="end"),
)
"""Attacks that no text describes."""


def _attacks() -> Iterator[Attack]:
    yield from SCRIPTS
    for family, variants in TEXTS.items():
        for variant, text in variants.items():
            yield Attack(family, variant, partial(say, text), most_turns=MOST_TEXTS)
            backwards = partial(say, text, backwards=True)
            yield Attack(family, f"{variant}, from the last verb", backwards, most_turns=MOST_TEXTS)


ATTACKS = tuple(_attacks())


class EndlessSession(WrappedSession):
    """Session that continues after the end of its task, and pays only what is earned there."""

    _ended = False

    async def step(self, action: str) -> StepResult:
        """See `Session.step`."""
        result, ended = await super().step(action), self._ended
        self._ended = ended or result.terminated
        return replace(result, reward=result.reward if ended else 0.0, terminated=False)


@dataclass(slots=True)
class AttackPolicy:
    """Policy of one episode of an attack."""

    attack: Attack
    known: Known

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """See `Policy.reply`."""
        action = self.attack.act(self.known, messages)[:MAX_DUMP]
        return Reply(action if self.attack.raw else self.known.action_format.format(action))


@dataclass(frozen=True, slots=True)
class Result:
    """Episodes of one attack, compared with its baseline.

    Attributes:
        attack: the attack.
        mean: mean return over the tasks.
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
        tasks: number of tasks that were attacked, drawn at random.
        of: number of tasks of the environment.
        results: one result for each attack.
    """

    tasks: int
    of: int
    results: list[Result]

    @property
    def findings(self) -> list[Result]:
        """Attacks that earn more than chance explains."""
        return [result for result in self.results if result.chance < LEVEL / len(self.results)]

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

    Args:
        attacked: value of the attack on each task.
        random_values: values of the random episodes of each task, equally many.
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


def attack_env(name: str, env: EnvAdapter, items: int, turns: int, limit_s: float) -> AttackReport:
    """Attack the reward of an environment on tasks of all splits, drawn at random.

    Args:
        name: registered name of the environment.
        env: the environment with its options.
        items: most tasks, for each split.
        turns: turn limit.
        limit_s: seconds after which no further task begins; at least one is attacked.

    Raises:
        ConfigError: the environment cannot play.
    """
    everything = list({item.id: item for split in env.splits for item in env.tasks(split)}.values())
    chosen = sample_tasks(everything, items * len(env.splits))
    played = asyncio.run(_play_tasks(name, env, chosen, turns, limit_s))
    results = [compared(attack, list(played.values())) for attack in ATTACKS]
    return AttackReport(len(played), len(everything), [result for result in results if result is not None])


async def _play_tasks(
    name: str, env: EnvAdapter, chosen: Sequence[TaskItem], turns: int, limit_s: float
) -> dict[str, Played]:
    """Play the tasks one after another, the episodes of each side by side."""
    hosts = HostSettings(where="inline") if unpicklable(env) else HostSettings(where="local")
    pool = local_pool(env, EnvSettings(name, hosts=hosts))
    try:
        demonstrated = demonstrated_actions(env, chosen)
    except ConfigError:
        demonstrated = []
    until, played = time.monotonic() + limit_s, dict[str, Played]()
    try:
        for item in chosen:
            if played and time.monotonic() > until:
                break
            played[item.id] = await _play_task(
                item, partial(PooledEnv, env, pool), _known(item, env, demonstrated, turns)
            )
    finally:
        await pool.shutdown()
    return played


def _known(item: TaskItem, env: EnvAdapter, demonstrated: Demonstrated, turns: int) -> Known:
    vocabulary = other_actions(item, demonstrated) if demonstrated else []
    try:
        demonstration = [demo.action for demo in demonstration_actions(env, item)]
    except ConfigError:
        demonstration = []
    return Known(env.action_format, vocabulary, demonstration, turns)


async def _play_task(item: TaskItem, new_session: Callable[[], Session], known: Known) -> Played:
    places, played = asyncio.Semaphore(CONCURRENT), Played()

    async def episode(name: str, attack: Attack, limit: int) -> None:
        async with places:
            session = new_session() if attack.baseline != "end" else EndlessSession(new_session())
            agent = make_agent(AgentSettings("raw" if attack.raw else "act"), known.action_format)
            one = await play(item, session, agent, AttackPolicy(attack, known), EpisodeLimits(limit, None))
            played.setdefault(name, []).append(one)

    long = max(known.turns, 2 * len(known.demonstration) + 2)
    works = [
        episode("random", Attack("random", "", partial(_random, random.Random(f"{item.id} {n}"))), known.turns)
        for n in range(RANDOM_EPISODES)
    ]
    if known.demonstration:
        again = Attack("demonstration", "", lambda known, messages: cycle(known.demonstration, messages))
        works.append(episode("demonstration", again, long))
    for attack in ATTACKS:
        if known.demonstration or not attack.needs_demonstration:
            limit = long if attack.needs_demonstration else min(known.turns, attack.most_turns)
            works.append(episode(str(attack), attack, limit))
    await asyncio.gather(*works)
    return played


def _random(draws: random.Random, known: Known, messages: Sequence[Message]) -> str:
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
