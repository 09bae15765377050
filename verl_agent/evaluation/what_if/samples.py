"""Samples that answer a question, drawn from given players and appended to the file of results."""

from collections.abc import Callable
from datetime import UTC, datetime

from verl_agent.agents.base import Agent
from verl_agent.errors import ConfigError
from verl_agent.evaluation.what_if.branch import Sampling, play_on, reply_with, sample_replies
from verl_agent.evaluation.what_if.recorded import TurnQuestion
from verl_agent.evaluation.what_if.results import (
    VERSION,
    Continuations,
    PlayedEpisode,
    Replies,
    SampledReply,
    SampledTurn,
    append_results,
    read_results,
    results_file,
)
from verl_agent.evaluation.what_if.summary import stored_samples
from verl_agent.types import Episode, Reply


async def draw_replies(question: TurnQuestion, sampling: Sampling, report: Callable[[str], None]) -> None:
    """Draw replies at the turn, and as many without a thought if the question asks for them; store each kind.

    Raises:
        ConfigError: see `verl_agent.evaluation.what_if.branch.sample_replies`; or the results cannot be written.
    """
    agent, file = sampling.player.new_agent(), results_file(question.recorded.file)
    for with_thought in (True, False) if question.without_thought else (True,):
        turn = _sampled_turn(question, sampling)
        result: Replies = {**turn, "kind": "replies", "with_thought": with_thought, "replies": []}
        samples = _following(stored_samples(read_results(file), result), question.samples)
        report(f"drawing {len(samples)} replies" + ("" if with_thought else " without a thought"))
        drawn = await sample_replies(question.recorded, question.turn, sampling, samples, with_thought)
        replies = {index: reply for index, reply in zip(samples, drawn, strict=True) if isinstance(reply, Reply)}
        refused = [reply for reply in drawn if not isinstance(reply, Reply)]
        if not replies:
            raise ConfigError(f"no reply could be drawn: {refused[-1]}")
        if refused:
            report(f"left out: {len(refused)} of {len(drawn)} replies. {refused[-1]}")
        result["indexes"], result["replies"] = [*replies], [_sampled(reply, agent) for reply in replies.values()]
        append_results(file, [result])


async def draw_continuations(
    question: TurnQuestion, sampling: Sampling, action: str, report: Callable[[str], None]
) -> None:
    """Play episodes on after the recorded action and after another one, and store each side.

    Both actions stand in a reply without a thought, so that the two sides differ in the action alone. A recorded reply
    without an action is repeated as it is. Both sides have samples of the same indexes, and so the same seeds; those of
    the recorded action that an earlier comparison stored are not played again.

    Raises:
        ConfigError: see `play_on` in `branch`; all episodes failed; or the results cannot be written.
    """
    agent, file = sampling.player.new_agent(), results_file(question.recorded.file)
    after = reply_with(question.recorded, question.turn, agent, action)
    other: Continuations = {
        **_sampled_turn(question, sampling),
        "kind": "continuations",
        "action": action,
        "source": "oracle" if question.oracle else "given",
        "reply": after.text,
        "max_turns": sampling.max_turns,
        "failed": [],
        "episodes": [],
    }
    recorded = question.recorded_action
    before = question.recorded.episode.turns[question.turn - 1].reply
    if recorded is not None:
        before = reply_with(question.recorded, question.turn, agent, recorded)
    baseline: Continuations = {**other, "action": recorded, "source": "recorded", "reply": before.text}
    stored = read_results(file)
    samples, known = _following(stored_samples(stored, other), question.samples), stored_samples(stored, baseline)
    missing = [index for index in samples if index not in known]
    for result, reply, wanted in ((baseline, before, missing), (other, after, samples)):
        if not wanted:
            continue
        side = result["action"]
        report(f"playing {len(wanted)} episodes on after {side!r:.100}")
        episodes = await play_on(question.recorded, question.turn, reply, sampling, wanted)
        valid = {index: episode for index, episode in zip(wanted, episodes, strict=True) if episode.valid}
        if not valid:
            raise ConfigError(
                f"no episode could be played on after {side!r:.100}; the last one ended with {episodes[-1].stop}: "
                f"{episodes[-1].error}"
            )
        result["indexes"], result["failed"] = [*valid], [index for index in wanted if index not in valid]
        result["episodes"] = [_played(episode, question.turn) for episode in valid.values()]
        append_results(file, [result])


def _sampled_turn(question: TurnQuestion, sampling: Sampling) -> SampledTurn:
    return {
        "version": VERSION,
        "episode": question.recorded.fingerprint,
        "task": question.recorded.record["task"],
        "turn": question.turn,
        "model": sampling.model,
        "temperature": sampling.settings.temperature,
        "top_p": sampling.settings.top_p,
        "seed": sampling.settings.seed,
        "settings": sampling.others,
        "indexes": [],
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _following(stored: set[int], count: int) -> list[int]:
    """Return the indexes of new samples, after those that are stored, so that a further command draws other ones."""
    first = max(stored, default=-1) + 1
    return list(range(first, first + count))


def _sampled(reply: Reply, agent: Agent) -> SampledReply:
    parts = [] if reply.truncated_by else [part.action for part in agent.read_reply(reply.text)]
    action = "\n".join(str(part) for part in parts if part is not None) or None
    return {"text": reply.text, "action": action, "tokens": reply.tokens}


def _played(episode: Episode, turn: int) -> PlayedEpisode:
    return {
        "success": episode.success,
        "reward": float(episode.reward),
        "stop": str(episode.stop),
        "actions": [None if later.action is None else str(later.action) for later in episode.turns[turn - 1 :]],
    }
