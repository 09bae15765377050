"""Training runs whose episodes a script plays through the real episode loop: one that learns, three that cannot."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import typer

import verl_agent as va
from env_adapters.guess_number.adapter import GuessNumber
from verl_agent.results.findings_history import condense, condensed_history
from verl_agent.results.findings_steps import RunHistory
from verl_agent.trace.metrics_log import MetricsLog
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, Purpose, to_record
from verl_agent.trace.record_files import EpisodeWriter

STARTED = datetime(2026, 1, 1, tzinfo=UTC)
GROUPS, SAMPLES, VALIDATED = 4, 4, 8
SMALL = ("small_train", "small_test")


class NoReward(GuessNumber):
    """Environment whose reward says nothing about success."""

    async def step(self, action: str) -> va.StepResult:
        return replace(await super().step(action), reward=0.0)


@dataclass(frozen=True, slots=True)
class Script:
    """Policy that follows the oracle of an environment and errs.

    Attributes:
        wrong: actions to take instead of the oracle's.
        errors: probability of a wrong action at a training step, 0 to 1.
        label: label of the line with the action; the prompt asks for `Action`.
    """

    wrong: Sequence[str]
    errors: Callable[[int], float] = lambda step: 0.3
    label: str = "Action"

    def policy(
        self, item: va.TaskItem, env: va.EnvAdapter, step: int, rng: random.Random
    ) -> Callable[[Sequence[va.Message]], str]:
        left = list(env.demonstration(item))

        def reply(messages: Sequence[va.Message]) -> str:
            if not left or rng.random() < self.errors(step):
                return f"Thought: I try something else.\n{self.label}: {rng.choice(self.wrong)}"
            action = left.pop(0)
            return f"Thought: {action.thought or 'This is the next step.'}\n{self.label}: {action.action}"

        return reply


def write_run(
    folder: Path,
    env: va.EnvAdapter,
    script: Script,
    *,
    splits: tuple[str, str],
    limit: Callable[[int], int] = lambda step: 6,
    steps: int = 12,
) -> Path:
    """Write the records of a run and return its folder."""
    rng = random.Random(0)
    (folder / "metrics").mkdir(parents=True)
    train, validation = env.tasks(splits[0]), env.tasks(splits[1])[:VALIDATED]
    with EpisodeWriter(folder / "episodes" / "scripted.jsonl") as writer:

        def play(item: va.TaskItem, purpose: Purpose, step: int, group: str, sample: int) -> None:
            longest = limit(step) if purpose == "train" else max(6, limit(steps))
            episode = va.play_sync(item, env, policy=script.policy(item, env, step, rng), max_turns=longest)
            at = STARTED + timedelta(minutes=step, seconds=sample, milliseconds=rng.randrange(1000))
            meta = EpisodeMeta(purpose, splits[purpose != "train"], step, group, sample, at, seconds=2.0)
            writer.write(to_record(episode, meta))

        for step in range(steps + 1):
            if step % 4 == 0:
                for item in validation:
                    play(item, "validation", step, f"validation-{step}-{item.id}", 0)
            for group in range(GROUPS if step else 0):
                item = train[(step * GROUPS + group) % len(train)]
                for sample in range(SAMPLES):
                    play(item, "train", step, f"{step}-{group}", sample)
    return folder


def learning(folder: Path, steps: int = 32) -> Path:
    """Write a run in TextCraft with ever fewer errors and a horizon that grows."""
    wrong = ("inventory", "get 1 oak planks", "craft 1 stick using 1 oak log")
    script = Script(wrong, errors=lambda step: 0.7 * 0.96**step)

    def limit(step: int) -> int:
        return 4 if step <= 10 else 6 if step <= 20 else 10

    return write_run(folder, va.make_env("textcraft"), script, splits=("train", "test"), limit=limit, steps=steps)


def broken_parser(folder: Path, steps: int = 12) -> Path:
    """Write a run whose replies have another label than the parser expects."""
    return write_run(folder, va.make_env("guess_number"), Script(("1", "5"), label="Act"), splits=SMALL, steps=steps)


def no_reward(folder: Path, steps: int = 12) -> Path:
    """Write a run whose environment always gives the reward 0."""
    return write_run(folder, NoReward(), Script(("1", "5")), splits=SMALL, steps=steps)


def short_horizon(folder: Path, steps: int = 12) -> Path:
    """Write a run whose turn limit no task of TextCraft fits in, but those of one action."""
    env = va.make_env("textcraft")
    return write_run(folder, env, Script(("inventory",)), splits=("train", "test"), limit=lambda step: 1, steps=steps)


def main(folder: Path) -> None:
    """Write all runs below a folder."""
    for run in (learning, broken_parser, no_reward, short_horizon):
        typer.echo(run(folder / run.__name__))


if __name__ == "__main__":
    typer.run(main)


def history_of(records: Iterable[EpisodeRecord], log: MetricsLog | None = None) -> RunHistory:
    """Return the history of the training, validation and test episodes among some records."""
    return condensed_history(list(map(condense, records)), log or MetricsLog())
