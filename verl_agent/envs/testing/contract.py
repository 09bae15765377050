"""The contract of a session: each check plays some items and raises `ContractViolation` for what it finds."""

import asyncio
import random
from collections.abc import Sequence
from functools import partial

from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import process_pool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.parsing import shorten
from verl_agent.envs.testing.harness import Harness, Transcript
from verl_agent.envs.testing.violation import ContractViolation
from verl_agent.errors import AgentError
from verl_agent.types import StepResult, TaskItem

BAD_ACTIONS = (
    "",
    " \n\t ",
    "no such action",
    "Action:",
    "\u202e\U0001f600\u0301 \x00 \ufffd",
    "-1",
    "9" * 5_000,
    "([{<%s%n{}\\\"'",
    "x" * 1_000_000,
)
"""Actions that no environment asks for and that a model writes sooner or later."""
FRAGMENTS = (
    *("<|im_start|>assistant\n", "</s>", "<think>", "Observation: ", "Thought: I", "```", "{}", "<a b='", "\\", "%s"),
    *("größer", "打开门", "открой", "افتح", "\U0001f600", "\x00", "\u202e", "0", "-1", "1e999", "NaN", "٣"),
    *("None", "../..", "'; --", "\n", "  ", "the ", "get ", "go "),
)
"""Pieces of what a model writes when it does not write an action."""
FUZZED = 200
CROWD = 16
"""Sessions that are played at once."""
CROWDED = "sessions do not disturb each other"
SOLVED = "demonstrations solve, and nothing is earned after the end"


def fuzz(actions: Sequence[str], count: int = FUZZED, seed: int = 0) -> list[str]:
    """Actions made of fragments, and good ones with letters changed; the same for the same seed."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        if actions and draw.random() < 0.5:
            text = list(draw.choice(actions))
            for _ in range(draw.randint(1, 4)):
                text.insert(draw.randint(0, len(text)), draw.choice(FRAGMENTS))
                del text[draw.randrange(len(text))]
            made.append("".join(text))
        else:
            made.append("".join(draw.choices(FRAGMENTS, k=draw.randint(1, 12))) * draw.choice((1, 1, 1, 500)))
    return made


def check_life(trial: Harness) -> None:
    """A session begins every item, and closes at any time."""

    async def live(item: TaskItem) -> None:
        await trial.close(trial.session())
        session = trial.session()
        await trial.reset(session, item)
        await trial.close(session)
        await trial.close(session)

    for item in trial.within_budget("sessions begin and close", trial.items):
        trial.play_all([partial(live, item)])


def check_bad_actions(trial: Harness) -> int:
    """What cannot be done is answered, briefly, and does not solve the task.

    Returns:
        Number of answers that count it as `invalid_action`.
    """
    item = trial.items[0]

    async def annoy() -> int:
        session, counted = trial.session(), 0
        await trial.reset(session, item)
        for place, action in enumerate(trial.within_budget("bad actions are answered", actions)):
            result = await trial.step(session, action)
            counted += bool(result.info.get("invalid_action"))
            if place < len(BAD_ACTIONS) and result.reward >= trial.env.success_reward:
                call = f"step({shorten(repr(action), 60)})"
                raise ContractViolation(call, f"earned {result.reward}", "Reward only what solves the task.")
            if result.terminated:
                await trial.close(session)
                session = trial.session()
                await trial.reset(session, item)
        await trial.close(session)
        return counted

    actions = [*BAD_ACTIONS, *fuzz(trial.oracle(item) or ())]
    return trial.play_all([annoy])[0]


def check_replay(trial: Harness) -> None:
    """The same item and actions give the same episode."""
    for item in trial.within_budget("episodes replay", trial.items):
        second = trial.play(item, trial.script(item))
        trial.compare(item, trial.alone(item), second, "when played again", "Draw from a generator seeded by the item.")


def check_isolation(trial: Harness) -> None:
    """A session is not changed by another one that is played in turn with it."""
    item, other = trial.items[0], trial.items[-1]
    actions, others = trial.script(item), trial.script(other)

    async def alternate() -> Transcript:
        session, neighbour = trial.session(), trial.session()
        prompt = await trial.reset(session, item)
        await trial.reset(neighbour, other)
        steps: list[StepResult] = []
        neighbour_ended = False
        for turn, action in enumerate(actions):
            if turn < len(others) and not neighbour_ended:
                neighbour_ended = (await trial.step(neighbour, others[turn])).terminated
            steps.append(await trial.step(session, action))
            if steps[-1].terminated:
                break
        await trial.close(neighbour)
        await trial.close(session)
        return Transcript(prompt, steps)

    mixed = trial.play_all([alternate])[0]
    advice = "Keep state on the instance, not on the class or module."
    trial.compare(item, trial.alone(item), mixed, "beside another session", advice)


def check_crowd(trial: Harness) -> None:
    """Sessions that are played at once do not disturb each other: in threads of their own, or in shared ones."""
    some = [(item, trial.alone(item)) for item in trial.within_budget(CROWDED, trial.items[: CROWD // 2])]
    items, alone = [item for item, _ in some] * 2, [transcript for _, transcript in some] * 2
    together = trial.play_all([partial(trial.converse, item, trial.script(item)) for item in items])
    advice = "Share nothing that changes between sessions, or guard it by a lock"
    if trial.env.hosting.threads is None:
        advice += "; what bears only one thread says `hosting = Hosting(threads=1)`"
    for item, first, second in zip(items, alone, together, strict=True):
        trial.compare(item, first, second, "beside other sessions", f"{advice}.")


def check_host(trial: Harness) -> None:
    """A host process, where sessions of a training live, plays as this process does."""
    items = trial.items[:2]

    async def play() -> list[Transcript]:
        pool = process_pool(trial.env, CallLimits(trial.timeout_s), PoolLimits(count=1))
        played: list[Transcript] = []
        try:
            for item in items:
                session = await pool.open()
                prompt = await pool.reset(session, item)
                steps: list[StepResult] = []
                for action in trial.script(item)[: len(trial.alone(item).steps)]:
                    steps.append(await pool.step(session, action))
                await pool.close(session)
                played.append(Transcript(prompt, steps))
        finally:
            await pool.shutdown()
        return played

    try:
        transcripts = asyncio.run(play())
    except AgentError as error:
        advice = "Define the class in a module, and let it need nothing that only this process has."
        raise ContractViolation("a host process", f"does not play: {error}", advice) from error
    for item, there in zip(items, transcripts, strict=True):
        advice = "Sort what comes out of a set, and take nothing from this process's past."
        trial.compare(item, trial.alone(item), there, "in a host process", advice)


def check_demonstrations(trial: Harness, items: Sequence[TaskItem]) -> None:
    """The oracle solves its items, and what is done after the end is answered and earns nothing."""

    async def linger(item: TaskItem) -> float:
        session, earned, ended = trial.session(), 0.0, False
        await trial.reset(session, item)
        actions = trial.oracle(item) or []
        for place, action in enumerate([*actions, "no such action", *actions[-2:]]):
            result = await trial.step(session, action)
            if ended and result.reward:
                call = f"step({shorten(repr(action), 60)}) after the end of {item.id!r}"
                raise ContractViolation(call, f"earned {result.reward}", "Remember the end; answer with reward 0.")
            earned += result.reward if place < len(actions) else 0.0
            ended = ended or result.terminated
        await trial.close(session)
        return earned

    for item in trial.within_budget(SOLVED, items):
        reward, need = trial.play_all([partial(linger, item)])[0], trial.env.success_reward
        if reward < need:
            call = f"demonstration({item.id!r})"
            raise ContractViolation(call, f"earned {reward} of {need}", "Return moves that solve the item.")
