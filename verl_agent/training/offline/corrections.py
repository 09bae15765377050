"""Pairs of a reply that a person edited and the one that the policy proposed, from records and text alone."""

from collections.abc import Iterable

from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.turn_record import TurnRecord
from verl_agent.training.offline.selection import conversation, fingerprint

CORRECTED = ("edited", "taken_over")
"""Decisions that replaced a reply of the policy by another one."""


def edited_replies(records: Iterable[EpisodeRecord]) -> list[tuple[EpisodeRecord, EpisodeRecord]]:
    """Return pairs of an edited and a proposed reply after the same messages, each as an episode that ends with it.

    The decision of the person orders them, not a return. Equal pairs count once, and the result does not depend on the
    order of the records.
    """
    pairs: dict[str, tuple[EpisodeRecord, EpisodeRecord]] = {}
    for record in records:
        for number, turn in enumerate(record["turns"]):
            if "review" not in turn or "proposed" not in turn or turn["review"]["decision"] not in CORRECTED:
                continue
            better, worse = _until(record, number, turn["reply"]), _until(record, number, turn["proposed"])
            if turn["reply"] != turn["proposed"]:
                pairs[fingerprint([conversation(better), conversation(worse)])] = better, worse
    return [pair for _, pair in sorted(pairs.items(), key=lambda one: (one[1][0]["env"], one[1][0]["task"], one[0]))]


def _until(record: EpisodeRecord, number: int, reply: str) -> EpisodeRecord:
    """Return the episode up to a turn, from 0, which has `reply` and no answer."""
    end = record["prompt_length"] + 2 * number
    last: TurnRecord = {**record["turns"][number], "reply": reply, "observation": None, "truncated_by": None}
    return {
        **record,
        "turns": [*record["turns"][:number], last],
        "messages": [*record["messages"][:end], {"role": "assistant", "content": reply}],
    }
