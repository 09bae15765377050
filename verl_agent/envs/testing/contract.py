"""Checks of sessions: each plays some items and raises `ContractViolation` for the first violation."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from functools import partial

from verl_agent.envs.action_format import ToolFormat
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import process_pool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.parsing import shorten
from verl_agent.envs.testing.harness import Harness, Transcript
from verl_agent.envs.testing.success import random_action
from verl_agent.envs.testing.violation import ContractViolation, boundary
from verl_agent.errors import AgentError
from verl_agent.returns import reaches, sum_rewards
from verl_agent.types import Message, StepResult, TaskItem

BAD_ACTIONS = (
    "",
    " \n\t ",
    "no such action",
    "Action:",
    "\u202e\U0001f600\u0301 \x00 \ufffd",
    "a\ud800b",
    "-1",
    "9" * 5_000,
    "([{<%s%n{}\\\"'",
    "x" * 1_000_000,
)
"""Actions that no environment offers and that a model writes sooner or later."""
FRAGMENTS = (
    *("<|im_start|>assistant\n", "</s>", "<think>", "Observation: ", "Thought: I", "```", "{}", "<a b='", "\\", "%s"),
    *("größer", "打开门", "открой", "افتح", "\U0001f600", "\x00", "\u202e", "0", "-1", "1e999", "NaN", "٣"),
    *("None", "../..", "'; --", "\n", "  ", "the ", "get ", "go "),
)
"""Fragments of replies that hold no action."""
KEPT_TEXTS: Mapping[str, str] = {
    "quotes": "where author='Brown' and title=\"It's\"",
    "outer quotes": '"a b"',
    "inner spaces": "a  b\tc",
    "lone surrogates": "a\ud800b",
    "line breaks": "first line\nsecond line",
    "indentation": "    if x:\n        y = 1",
}
"""Texts that an action format must return unchanged, by the property that is tested."""
MULTILINE = {"line breaks", "indentation"}
"""Properties that an action format for single lines may lose."""
FUZZED = 200
MOST_CONCURRENT = 16
"""Most sessions that are played at once."""
CONCURRENT = "sessions do not disturb each other"
REPLAY_ADVICE = (
    "Draw random numbers from a generator that is seeded by the item. If the world also changes by itself, set "
    "`deterministic = False`."
)
LUCK = "random episodes replay"
PAIRS = 24
"""Pairs of random episodes that must agree: luck that changes a quarter of them is missed in 1 of 1,000 checks."""
EXPLORED = 12
"""Most random actions of such an episode."""
SOLVED = "demonstrations solve, and nothing is earned after the end"


def fuzz(actions: Sequence[str], count: int = FUZZED, seed: int = 0) -> list[str]:
    """Return actions built from fragments, and valid ones with changed letters; they depend only on the seed."""
    generator, fuzzed = random.Random(seed), []
    for _ in range(count):
        if actions and generator.random() < 0.5:
            text = list(generator.choice(actions))
            for _ in range(generator.randint(1, 4)):
                text.insert(generator.randint(0, len(text)), generator.choice(FRAGMENTS))
                del text[generator.randrange(len(text))]
            fuzzed.append("".join(text))
        else:
            fragments = generator.choices(FRAGMENTS, k=generator.randint(1, 12))
            fuzzed.append("".join(fragments) * generator.choice((1, 1, 1, 500)))
    return fuzzed


def check_action_format(env: EnvAdapter) -> bool:
    """Check that formatting and parsing an action returns it unchanged.

    Returns:
        True if actions may have several lines.
    """
    action_format, lost = env.action_format, {}
    advice = "parse(format(action)) must return the action as the model writes it: remove the mark, change no text."
    for name, text in KEPT_TEXTS.items():
        if name == "lone surrogates" and isinstance(action_format, ToolFormat):
            continue  # no JSON has them
        action = action_format.action_with(text)
        call = f"action_format.parse(action_format.format({action!r}))"
        with boundary(call, advice):
            parsed = action_format.parse(action_format.format(action))
        if parsed != action:
            lost[name] = (call, parsed)
    if changed := [name for name in lost if name not in MULTILINE]:
        call, parsed = lost[changed[0]]
        raise ContractViolation(call, f"returned {parsed!r}; it loses {', '.join(changed)}", advice)
    return not lost


def check_lifecycle(harness: Harness) -> None:
    """Check that a session begins every item and closes at any time."""

    async def live(item: TaskItem) -> None:
        await harness.close(harness.new_session())
        session = harness.new_session()
        await harness.reset(session, item)
        await harness.close(session)
        await harness.close(session)

    for item in harness.within_budget("sessions begin and close", harness.items):
        harness.play_all([partial(live, item)])


def check_bad_actions(harness: Harness) -> int:
    """Check that actions that are not possible get a short answer and do not solve the task.

    Returns:
        Number of answers that count the action as `invalid_action`.
    """
    item = harness.items[0]

    async def play() -> int:
        session, counted = harness.new_session(), 0
        await harness.reset(session, item)
        for index, action in enumerate(harness.within_budget("bad actions are answered", actions)):
            result = await harness.step(session, action)
            counted += bool(result.info.get("invalid_action"))
            if index < len(BAD_ACTIONS) and reaches([result.reward], harness.env.success_reward):
                call = f"step({shorten(repr(action), 60)})"
                raise ContractViolation(call, f"earned {result.reward}", "Reward only actions that solve the task.")
            if result.terminated:
                await harness.close(session)
                session = harness.new_session()
                await harness.reset(session, item)
        await harness.close(session)
        return counted

    actions = [*BAD_ACTIONS, *fuzz([*map(str, harness.demonstration(item) or ())])]
    return harness.play_all([play])[0]


def check_replay(harness: Harness) -> None:
    """Check that the same item and actions give the same episode."""
    for item in harness.within_budget("episodes replay", harness.items):
        second = harness.play(item, harness.script(item))
        harness.compare(item, harness.reference(item), second, "when played again", REPLAY_ADVICE)


def check_luck(harness: Harness) -> str:
    """Check that random actions give the same episode twice.

    Returns:
        Number of pairs of episodes, and the power of the test.
    """
    pairs = 0
    for number in harness.within_budget(LUCK, range(PAIRS)):
        item = harness.items[number % len(harness.items)]
        first, second = (harness.play_all([partial(_explore, harness, item, number)])[0] for _ in range(2))
        harness.compare(item, first, second, "when played again", REPLAY_ADVICE)
        pairs += 1
    seen = 1 - 0.001 ** (1 / pairs)
    return f"{pairs} pairs; luck that changes {seen:.0%} of the episodes is missed in 1 of 1,000 checks"


async def _explore(harness: Harness, item: TaskItem, seed: int) -> Transcript:
    """Play random actions, the same ones for the same answers."""
    session, draws = harness.new_session(), random.Random(seed)
    prompt = await harness.reset(session, item)
    steps: list[StepResult] = []
    while len(steps) < EXPLORED and not (steps and steps[-1].terminated):
        said: Sequence[Message] = [{"role": "user", "content": steps[-1].observation}] if steps else []
        steps.append(await harness.step(session, random_action(harness.env, draws, [*prompt, *said])))
    await harness.close(session)
    return Transcript(prompt, steps)


def check_isolation(harness: Harness) -> None:
    """Check that a session is not changed by another one whose turns alternate with its own."""
    item, other = harness.items[0], harness.items[-1]
    actions, others = harness.script(item), harness.script(other)

    async def alternate() -> Transcript:
        session, neighbour = harness.new_session(), harness.new_session()
        prompt = await harness.reset(session, item)
        await harness.reset(neighbour, other)
        steps: list[StepResult] = []
        neighbour_ended = False
        for turn, action in enumerate(actions):
            if turn < len(others) and not neighbour_ended:
                neighbour_ended = (await harness.step(neighbour, others[turn])).terminated
            steps.append(await harness.step(session, action))
            if steps[-1].terminated:
                break
        await harness.close(neighbour)
        await harness.close(session)
        return Transcript(prompt, steps)

    alternated = harness.play_all([alternate])[0]
    advice = "Keep state on the instance, not on the class or module."
    harness.compare(item, harness.reference(item), alternated, "beside another session", advice)


def check_concurrency(harness: Harness) -> None:
    """Check that concurrent sessions do not disturb each other, in their own threads or in shared ones."""
    chosen = list(harness.within_budget(CONCURRENT, harness.items[: MOST_CONCURRENT // 2]))
    references = [harness.reference(item) for item in chosen] * 2
    items = chosen * 2
    together = harness.play_all([partial(harness.converse, item, harness.script(item)) for item in items])
    advice = "Share nothing that changes between sessions, or guard it by a lock."
    if harness.env.hosting.threads is None:
        advice += " If a library allows only one thread, set `hosting = Hosting(threads=1)`."
    for item, first, second in zip(items, references, together, strict=True):
        harness.compare(item, first, second, "beside other sessions", advice)


def check_host(harness: Harness) -> None:
    """Check that a host process, as training uses it, plays as this process does."""
    items = harness.items[:2]

    async def play() -> list[Transcript]:
        pool = process_pool(harness.env, CallLimits(harness.timeout_s), PoolLimits(count=1))
        transcripts: list[Transcript] = []
        try:
            for item in items:
                session = await pool.open()
                prompt = await pool.reset(session, item)
                steps: list[StepResult] = []
                for action in harness.script(item)[: len(harness.reference(item).steps)]:
                    steps.append(await pool.step(session, action))
                await pool.close(session)
                transcripts.append(Transcript(prompt, steps))
        finally:
            await pool.shutdown()
        return transcripts

    try:
        transcripts = asyncio.run(play())
    except AgentError as error:
        advice = "Define the class in a module. It may need nothing that only this process has."
        raise ContractViolation("a host process", f"does not play: {error}", advice) from error
    advice = "Sort the elements of sets. Let nothing depend on the past of this process."
    for item, transcript in zip(items, transcripts, strict=True):
        harness.compare(item, harness.reference(item), transcript, "in a host process", advice)


def check_demonstrations(harness: Harness, items: Sequence[TaskItem]) -> None:
    """Check that demonstrations solve their items, and that actions after the end are answered and earn nothing."""

    async def play(item: TaskItem) -> list[float]:
        session, earned, ended = harness.new_session(), list[float](), False
        await harness.reset(session, item)
        actions = harness.demonstration(item) or []
        for index, action in enumerate([*actions, "no such action", *actions[-2:]]):
            result = await harness.step(session, action)
            if ended and result.reward:
                call = f"step({shorten(repr(action), 60)}) after the end of {item.id!r}"
                raise ContractViolation(call, f"earned {result.reward}", "Remember the end; answer with reward 0.")
            earned += [result.reward] if index < len(actions) else []
            ended = ended or result.terminated
        await harness.close(session)
        return earned

    for item in harness.within_budget(SOLVED, items):
        rewards, needed = harness.play_all([partial(play, item)])[0], harness.env.success_reward
        if not reaches(rewards, needed):
            call = f"demonstration({item.id!r})"
            raise ContractViolation(
                call, f"earned {sum_rewards(rewards)} of {needed}", "Return actions that solve the item."
            )
