"""Candidates of a reply: several samples of a policy at one turn, the most frequent action first."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verl_agent.agents.base import Agent
from verl_agent.rollout.policy import Policy
from verl_agent.types import Action, Message, Reply


@dataclass(frozen=True, slots=True)
class Candidate:
    """Action that some of the samples take.

    Attributes:
        share: share of the samples that take it, an estimate of its probability under the policy, above 0, up to 1.
        reply: first sample that takes it.
    """

    action: Action
    share: float
    reply: Reply


class CandidatePolicy:
    """Policy of one episode that draws several replies at each turn and gives the one with the most frequent action.

    Each sample comes from a fresh policy that reads the whole conversation, so a person may change it in between.
    """

    def __init__(self, new_policy: Callable[[int], Policy], agent: Agent, samples: int) -> None:
        self._new_policy, self._agent, self._samples = new_policy, agent, samples
        self._drawn = 0
        self.candidates: list[Candidate] = []
        """Candidates of the last turn, the most frequent first; equal shares in the order of the samples."""

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Without an action in any sample, the first sample."""
        numbers = range(self._drawn, self._drawn + self._samples)
        self._drawn += self._samples
        replies = await asyncio.gather(*(self._new_policy(number).reply(messages) for number in numbers))
        self.candidates = count_actions(self._agent, replies)
        return self.candidates[0].reply if self.candidates else replies[0]


def count_actions(agent: Agent, replies: Sequence[Reply]) -> list[Candidate]:
    """Return the distinct actions of replies, the most frequent first; truncated replies have none."""
    read = [None if reply.truncated_by else agent.parse_reply(reply.text) for reply in replies]
    actions = [(action, reply) for action, reply in zip(read, replies, strict=True) if action is not None]
    first: dict[Action, Reply] = {}
    for action, reply in actions:
        first.setdefault(action, reply)
    counts = Counter(action for action, _ in actions)
    return [Candidate(action, count / len(replies), first[action]) for action, count in counts.most_common()]
