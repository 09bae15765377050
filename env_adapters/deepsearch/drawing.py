"""Drawings of Deep Search's states for the viewer: the gold chain, and whether a passage held the answer."""

from env_adapters.deepsearch.answers import normalize
from verl_agent.envs.drawing import Drawing, Node, Tree
from verl_agent.types import Episode


def draw(episode: Episode) -> list[list[Drawing]]:
    """Return the gold chain at the start and after each turn; questions of files have none.

    A search is marked if the policy made the same one, the answer if a passage held it or the policy gave it.
    """
    chain = episode.item.data.get("chain")
    if not chain:
        return []
    *searches, (_, answer) = chain
    said, seen = "", False
    states: list[list[Drawing]] = []
    for turn in (None, *episode.turns):
        if turn is not None and turn.step is not None and turn.carried_out:
            said += f"\n{normalize(turn.action or '')}"
            seen = seen or turn.step.info.get("answer_seen", 0.0) > 0 or turn.step.reward > 0
        nodes = [Node(f"{query} ({thought})", normalize(query) in said) for thought, query in searches]
        states.append([Tree("Gold chain", [*nodes, Node(f"answer: {answer}", seen)])])
    return states
