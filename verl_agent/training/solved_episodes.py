"""Solved episodes, of which the episodes of training replay the first turns (`horizon.replay`)."""

from collections.abc import Iterable, Sequence

from verl_agent.agents.base import Agent
from verl_agent.envs.base import EnvAdapter
from verl_agent.horizon import Replay
from verl_agent.rollout.oracle import demonstration_actions
from verl_agent.trace.record import EpisodeRecord, is_operated
from verl_agent.trace.record_files import read_records
from verl_agent.types import DemoAction, TaskItem


class SolvedEpisodes:
    """Replies that solve the tasks of an environment: those of records, or its demonstrations.

    Raises:
        ConfigError: the records cannot be read.
    """

    def __init__(self, env: EnvAdapter, replay: Replay) -> None:
        self._env, self._replay = env, replay
        self._recorded = _shortest(read_records(replay.records)) if replay.records else None
        self._actions: dict[str, Sequence[DemoAction]] = {}

    def replies(self, item: TaskItem, agent: Agent) -> list[str]:
        """Return the replies that solve a task, as `agent` writes them; empty if the records have none.

        Raises:
            ConfigError: the environment has no demonstrations.
        """
        if self._recorded is not None:
            return self._recorded.get((item.env, item.id), [])
        if item.id not in self._actions:
            self._actions[item.id] = demonstration_actions(self._env, item)
        actions = self._actions[item.id]
        return [agent.render_demo(actions, number) for number in range(len(actions))]

    def given(self, item: TaskItem, agent: Agent, limit: int) -> list[str]:
        """Return the replies to replay where the policy may take `limit` turns; may be empty. See `replies`."""
        replies = self.replies(item, agent)
        return replies[: self._replay.given(len(replies), limit)]


def _shortest(records: Iterable[EpisodeRecord]) -> dict[tuple[str, str], list[str]]:
    """Return the replies of the solved episode with the fewest turns of each task, by environment and id."""
    found: dict[tuple[str, str], list[str]] = {}
    for record in records:
        replies = [
            one["content"] for one in record["messages"][record["prompt_length"] :] if one["role"] == "assistant"
        ]
        whole = record["success"] and not record.get("given_turns") and not is_operated(record)
        key = record["env"], record["task"]
        if whole and (key not in found or len(replies) < len(found[key])):
            found[key] = replies
    return found
