"""Solved episodes, of which the episodes of training replay the first turns (`horizon.replay`)."""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from verl_agent.agents.base import Agent
from verl_agent.config.settings import RunEnv
from verl_agent.horizon import Replay
from verl_agent.rollout.oracle import planned_actions
from verl_agent.trace.record import EpisodeRecord, env_label, is_operated, to_episode
from verl_agent.trace.record_files import read_records
from verl_agent.types import DemoAction, TaskItem


class SolvedEpisodes:
    """Replies that solve the tasks of an environment: those of records, or its demonstrations.

    Raises:
        ConfigError: the records cannot be read.
    """

    def __init__(self, run_env: RunEnv, replay: Replay) -> None:
        self._env, self._replay = run_env.live, replay
        self._recorded: dict[str, list[str]] | None = None
        if replay.records:
            names = {run_env.label, run_env.env.name}
            self._recorded = _shortest(one for one in read_records(replay.records) if env_label(one) in names)
        self._actions: dict[str, Sequence[DemoAction]] = {}

    def replies(self, item: TaskItem, agent: Agent) -> list[str]:
        """Return the replies that solve a task, as `agent` writes them; empty if no solution is known.

        Raises:
            ConfigError: the oracle's actions depend on observations.
        """
        if self._recorded is not None:
            return self._recorded.get(item.id, [])
        if item.id not in self._actions:
            actions: Sequence[DemoAction] = ()  # kept when known: episodes of a group ask from several threads
            with suppress(NotImplementedError):
                actions = planned_actions(self._env, item)
            self._actions[item.id] = actions
        actions = self._actions[item.id]
        return [agent.render_demo(actions, number) for number in range(len(actions))]

    def given(self, item: TaskItem, agent: Agent, limit: int) -> list[str]:
        """Return the replies to replay where the policy may take `limit` turns; may be empty. See `replies`."""
        replies = self.replies(item, agent)
        return replies[: self._replay.given(len(replies), limit)]


def _shortest(records: Iterable[EpisodeRecord]) -> dict[str, list[str]]:
    """Return the replies of the solved episode with the fewest turns of each task."""
    found: dict[str, list[str]] = {}
    for record in records:
        if not record["success"] or record.get("given_turns") or is_operated(record):
            continue
        replies = [
            one["content"] for one in record["messages"][record["prompt_length"] :] if one["role"] == "assistant"
        ]
        whole = all(turn.carried_out for turn in to_episode(record).turns)
        if whole and len(replies) < len(found.get(record["task"], [*replies, ""])):
            found[record["task"]] = replies
    return found
