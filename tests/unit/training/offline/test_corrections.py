"""Tests of learning from people's corrections: usable episodes, turns by author, and pairs of edits."""

import asyncio
import json
from datetime import UTC, datetime

import pytest

from tests.support.fakes import ITEM, ScriptedPolicy, plain, talk_class
from tests.support.overseers import ScriptedPerson
from verl_agent.errors import ConfigError
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, to_record
from verl_agent.training.offline.preferences import PreferenceSettings, make_pairs, pairable_records
from verl_agent.training.offline.selection import EpisodeSource, learned_turns, select_episodes, usable_records

META = EpisodeMeta("collection", "train", 0, "1", 0, datetime(2026, 1, 1, tzinfo=UTC), 1.0)


def corrected(script, lines, turns: int) -> EpisodeRecord:
    """Return the record of an episode that is solved with its last turn, with a person's decisions."""
    limits, policy = EpisodeLimits(turns), ScriptedPolicy(script)
    return to_record(
        asyncio.run(play_episode(ITEM, talk_class()(turns=turns), plain(), policy, limits, ScriptedPerson(lines))), META
    )


@pytest.fixture
def folder(tmp_path):
    own = corrected(["own"], ["/a"], 1)
    helped = corrected(["a", "b", "c"], ["/a", "better b", "/t better c"], 3)
    ended = corrected(["a", "b"], ["better a", "/end"], 3)
    (tmp_path / "episodes.jsonl").write_text("\n".join(map(json.dumps, [own, helped, ended])))
    return str(tmp_path)


def replies(records) -> list[str]:
    return [record["turns"][0]["reply"] for record in records]


def test_episodes_with_a_persons_help_are_learned_from_only_if_asked(folder):
    assert replies(usable_records([folder], "episodes.records")) == ["own"]
    assert replies(usable_records([folder], "episodes.records", operated=True)) == ["own", "a", "better a"]


def test_turns_are_chosen_by_author_and_rejected_ones_never():
    record = corrected(["a", "b", "c"], ["better a", "/reject no", "/a"], 3)
    assert learned_turns(record["turns"], ["person"]) == [True, False, False]
    assert learned_turns(record["turns"], ["policy", "person"]) == [True, False, True]
    assert learned_turns(record["turns"], []) == [True, False, True]


def test_episode_without_a_turn_of_the_authors_is_left_out(folder):
    source = EpisodeSource(oracle=False, records=[folder], authors=["person"], min_reward=0.0)
    chosen = select_episodes(usable_records([folder], "episodes.records", operated=True), source)
    assert sorted(replies(one.record for one in chosen)) == ["a", "better a"]


def test_edit_becomes_a_pair_that_ends_with_the_edited_turn(folder):
    settings = PreferenceSettings(records=[folder], pairs="edits")
    pairs = make_pairs(pairable_records(settings), settings)
    ends = sorted((pair.better["messages"][-1]["content"], pair.worse["messages"][-1]["content"]) for pair in pairs)
    assert ends == [("better a", "a"), ("better b", "b"), ("better c", "c")]
    (second,) = (pair for pair in pairs if pair.better["messages"][-1]["content"] == "better b")
    assert second.better["messages"][:-1] == second.worse["messages"][:-1]
    assert second.trained(second.worse) == [False, True]


def test_edits_are_limited_by_task_and_do_not_depend_on_the_order_of_records(folder):
    settings = PreferenceSettings(records=[folder], pairs="edits", per_task=2)
    records = pairable_records(settings)
    pairs = make_pairs(records, settings)
    assert len(pairs) == 2
    assert [pair.fingerprint for pair in make_pairs(records[::-1], settings)] == [pair.fingerprint for pair in pairs]


def test_records_without_an_edit_raise_config_error(tmp_path):
    (tmp_path / "episodes.jsonl").write_text(json.dumps(corrected(["own"], ["/a"], 1)))
    settings = PreferenceSettings(records=[str(tmp_path)], pairs="edits")
    with pytest.raises(ConfigError, match="has no edited reply"):
        make_pairs(pairable_records(settings), settings)
