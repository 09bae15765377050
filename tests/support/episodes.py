"""Short episode records for tests."""

from datetime import UTC, datetime

from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, Purpose, to_record
from verl_agent.types import Episode, Message, Reply, StepResult, StopReason, TaskItem, Turn

STARTED = datetime(2025, 5, 4, 12, 30, tzinfo=UTC)


def talk(
    replies: str = "a b",
    reward: float = 1.0,
    task: str = "1",
    env: str = "talk",
    prompt: str = "Begin.",
    stop: StopReason = StopReason.TERMINATED,
    purpose: Purpose = "evaluation",
) -> EpisodeRecord:
    """Return the record of an episode with one reply for each word; the last step earns `reward`."""
    words = replies.split()
    messages: list[Message] = [{"role": "system", "content": "Talk."}, {"role": "user", "content": prompt}]
    turns: list[Turn] = []
    for number, word in enumerate(words, start=1):
        last = number == len(words)
        truncated_by = stop if last and stop in (StopReason.TURN_TOKENS, StopReason.EPISODE_TOKENS) else None
        step = None if truncated_by else StepResult(f"heard {word}", reward if last else 0.0)
        messages.append({"role": "assistant", "content": word})
        if step:
            messages.append({"role": "user", "content": step.observation})
        turns.append(Turn(Reply(word, truncated_by, 1), None if truncated_by else word, step, 0.0, 0.0))
    episode = Episode(TaskItem(env, task), 9, messages, turns, stop, prompt_length=2)
    return to_record(episode, EpisodeMeta(purpose, "train", 0, task, 0, STARTED, seconds=1.0))


def played(
    *turns: tuple[str | None, str],
    first: str = "Begin.",
    reward: float = 0.0,
    task: str = "1",
    info: dict[str, float] | None = None,
    meta: EpisodeMeta | None = None,
) -> EpisodeRecord:
    """Return the record of an episode that ended by itself."""
    messages: list[Message] = [{"role": "user", "content": first}]
    episode = Episode(TaskItem("talk", task), 9, messages, [], StopReason.TERMINATED, prompt_length=1)
    for number, (action, observation) in enumerate(turns, start=1):
        last = number == len(turns)
        step = StepResult(observation, reward if last else 0.0, last, (info or {}) if last else {})
        text = action or "Hm."
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": observation}]
        episode.turns.append(Turn(Reply(text, tokens=1), action, step, 0.5, 0.25))
    return to_record(episode, meta or EpisodeMeta("evaluation", "train", 0, task, 0, STARTED, seconds=1.0))
