"""Selection of recorded episodes to train on, and their weights."""

import json
import random
import re
from datetime import UTC, datetime

import pytest

from tests.support.episodes import talk
from verl_agent.agents.settings import AgentSettings
from verl_agent.config.settings import AgentEnv
from verl_agent.envs.settings import EnvSettings
from verl_agent.envs.tasks import sample_tasks
from verl_agent.errors import ConfigError
from verl_agent.rollout.oracle import demonstrate
from verl_agent.sections import section
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, to_record
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.training.offline.selection import (
    EpisodeSource,
    check_agent,
    conversation,
    count_by_environment,
    select_episodes,
    usable_records,
)
from verl_agent.training.offline.sft import recorded
from verl_agent.types import StopReason


def write(path, records) -> str:
    with EpisodeWriter(path) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def chosen(records: list[EpisodeRecord], **settings) -> list[tuple[str, str, float]]:
    """Return task, replies and weight of the kept episodes."""
    source = EpisodeSource(records=["anywhere"], **settings)
    return [
        (one.record["task"], " ".join(turn["reply"] for turn in one.record["turns"]), one.weight)
        for one in select_episodes(records, source)
    ]


def test_min_reward_keeps_partial_success():
    records = [talk("a"), talk("b", reward=0.5), talk("c", reward=0.4)]
    assert [words for _, words, _ in chosen(records, min_reward=0.5)] == ["a", "b"]
    assert chosen(records) == [("1", "a", 1.0)]


def test_a_conversation_counts_once():
    assert chosen([talk("a b"), talk("a b"), talk("a b", task="2")]) == [("1", "a b", 1.0), ("2", "a b", 1.0)]


def test_per_task_keeps_the_best_and_then_the_shortest():
    records = [talk("a b c"), talk("x y"), talk("p q", reward=2.0), talk("z", task="2")]
    assert [words for _, words, _ in chosen(records, per_task=2)] == ["p q", "x y", "z"]


def test_the_order_of_the_records_does_not_matter():
    records = [talk(words, task=task) for words in ("a", "b", "c d", "e f") for task in "123"]
    shuffled = random.Random(0).sample(records, len(records))
    assert chosen(records, per_task=2) == chosen(shuffled, per_task=2)


def test_of_equal_conversations_the_best_record_is_kept_in_any_order():
    """Another judge or a correction can pay one conversation differently; AgentEvol weights it by that reward."""
    low, high = talk("a"), talk("a")
    assert low["messages"] == high["messages"]
    low["reward"], high["reward"] = 0.5, 1.0
    for records in ([low, high], [high, low]):
        (episode,) = select_episodes(records, EpisodeSource(min_reward=0.1, weight="reward"))
        assert (episode.record["reward"], episode.weight) == (1.0, 1.0 / high["success_reward"])


def test_weight_reward_is_the_return_in_units_of_a_solved_task():
    records = [talk("a", reward=50.0) | {"success_reward": 100.0}, talk("b", reward=0.0), talk("c", reward=-1.0)]
    assert chosen(records, weight="reward", min_reward=-5.0) == [("1", "a", 0.5)]


def test_weight_reward_is_the_share_of_a_solved_task_and_never_above_one():
    records = [talk(words, reward=reward) | {"success_reward": 1e-6} for words, reward in (("a", 0.9), ("b", 5e-7))]
    assert [weight for _, _, weight in chosen(records, weight="reward", min_reward=0.0)] == [1.0, 0.5]


@pytest.mark.parametrize("solved", [0.0, -1.0])
def test_weight_reward_is_refused_where_no_return_is_a_share_of_a_solved_task(solved):
    records = [talk("a") | {"success_reward": solved}]
    message = rf"episodes\.weight='reward' is not allowed for env 'talk': a return of {solved:g} solves task '1'"
    with pytest.raises(ConfigError, match=message):
        chosen(records, weight="reward")
    assert chosen(records, weight="task") == [("1", "a", 1.0)]


def test_explored_episodes_are_selected_apart_from_the_base_set(tmp_path):
    """AgentEvol trains on the base set of its recipe, and beside it on the explored episodes that it keeps."""

    def played(name: str, **rewards: float) -> str:
        records = [talk(words, reward=reward, purpose="collection") for words, reward in rewards.items()]
        return write(tmp_path / name, records)

    base, explored = played("base.jsonl", a=0.2, b=0.1, c=0.0), played("explored.jsonl", a=0.2, d=1.0, e=0.5)
    source = EpisodeSource(
        False, [base], min_reward=0.1, explored={"records": [explored], "min_reward": 0.2, "weight": "reward"}
    )
    found = {one.record["turns"][0]["reply"]: one.weight for one in recorded(source, [])}
    assert found == {"a": 1.0, "b": 1.0, "d": 1.0, "e": 0.5}, "each conversation once"
    only_people = EpisodeSource(False, [base], min_reward=0.1, authors=["person"], explored={"records": [explored]})
    with pytest.raises(ConfigError, match=r"episodes\.records=.* has no episode to train on"):
        recorded(only_people, [])
    wrong = EpisodeSource(False, [base], min_reward=0.1, explored={"records": [explored], "weight": "rewards"})
    with pytest.raises(ConfigError, match=r"episodes\.explored\.weight='rewards' is not allowed"):
        recorded(wrong, [])
    for unread in ({"oracle": True}, {"max_turns": 3}, {"explored": {"records": [base]}}):
        with pytest.raises(ConfigError, match=rf"episodes\.explored\.{min(unread)} would do nothing"):
            EpisodeSource(False, [base], explored={"records": [explored], **unread})


def test_weight_task_sums_to_one_for_each_task():
    records = [talk("a"), talk("b"), talk("c"), talk("d"), talk("e", task="2")]
    weights = chosen(records, weight="task")
    assert [sum(weight for task, _, weight in weights if task == name) for name in "12"] == [1.0, 1.0]


def test_episodes_are_counted_by_environment():
    episodes = select_episodes([talk("a"), talk("b"), talk("a", env="walk")], EpisodeSource())
    assert count_by_environment(episodes) == {"talk": 2, "walk": 1}


def test_a_conversation_ends_with_the_last_reply():
    assert conversation(talk("a b"))[-1] == {"role": "assistant", "content": "b"}
    assert conversation(talk("a b", stop=StopReason.TURN_TOKENS))[-1]["content"] == "b"


def test_validations_failed_environments_and_empty_episodes_are_not_usable(tmp_path):
    records = [
        talk("a"),
        talk("b", purpose="validation"),
        talk("b", purpose="test"),
        talk("c", stop=StopReason.ENV_ERROR),
        talk("", stop=StopReason.EPISODE_TOKENS),
        talk("d", purpose="train"),
    ]
    path = write(tmp_path / "episodes.jsonl", records)
    assert [record["turns"][0]["reply"] for record in usable_records([path], "key")] == ["a", "d"]
    with pytest.raises(ConfigError, match=r"key=\['.*b.jsonl'\] has no episode to train on among 4 recorded"):
        usable_records([write(tmp_path / "b.jsonl", records[1:5])], "key")


def test_an_episode_of_a_held_out_task_raises_config_error(tmp_path):
    path = write(
        tmp_path / "episodes.jsonl", [talk(task="1"), talk(task="2"), talk(task="2", env="walk", purpose="train")]
    )
    with pytest.raises(ConfigError, match=r"episodes.records holds episodes of 1 held-out tasks, such as '2' of env"):
        usable_records([path], "episodes.records", frozenset({("talk", "2"), ("talk", "3")}))


def test_a_held_out_task_is_found_under_the_label_of_an_entry_of_a_mixture(tmp_path):
    labelled = {**talk(task="2", purpose="train"), "env_label": "talk_long"}
    path = write(tmp_path / "episodes.jsonl", [labelled, talk(task="1")])
    with pytest.raises(ConfigError, match=r"episodes of 1 held-out tasks, such as '2' of env 'talk'"):
        usable_records([path], "episodes.records", frozenset({("talk", "2")}))
    assert len(usable_records([path], "episodes.records", frozenset({("talk", "3")}))) == 2


def test_an_evaluation_of_another_environment_raises_config_error(tmp_path):
    """Its tasks may be the held-out tasks of that environment."""
    path = write(tmp_path / "episodes.jsonl", [talk(task="1"), talk(task="2", env="walk")])
    with pytest.raises(ConfigError, match=r"key holds an evaluation of env 'walk', whose held-out tasks"):
        usable_records([path], "key", frozenset({("talk", "9")}))
    collection = write(tmp_path / "c.jsonl", [talk(task="1"), talk(task="2", env="walk", purpose="collection")])
    assert len(usable_records([collection], "key", frozenset({("talk", "9")}))) == 2


@pytest.mark.parametrize("version", [0, 99])
def test_a_record_of_an_unknown_version_raises_config_error(tmp_path, version):
    path = tmp_path / "episodes.jsonl"
    path.write_text(json.dumps({**talk(), "version": version}) + "\n")
    with pytest.raises(ConfigError, match=rf"^preference.records.*version {version}"):
        usable_records([str(path)], "preference.records")


def test_a_missing_path_raises_config_error_naming_the_key(tmp_path):
    with pytest.raises(ConfigError, match=r"^episodes.records: No episode records at"):
        usable_records([str(tmp_path / "nothing")], "episodes.records")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"weight": "rewards"},
            "episodes.weight='rewards' is not allowed. Allowed: none, reward, task.",
        ),
        ({"per_task": 0}, "episodes.per_task=0 is not allowed. Allowed: a whole number >= 1 or null."),
        ({"records": 3}, "episodes.records=3 is not allowed. Allowed: a list of texts."),
        ({"oracle": False}, r"episodes.oracle=false and episodes.records=\[\] leave nothing to train on"),
    ],
)
def test_invalid_settings_raise_config_error_naming_the_key(settings, message):
    with pytest.raises(ConfigError, match=message):
        section("episodes", EpisodeSource, settings)


def test_one_path_may_be_given_without_a_list():
    assert section("episodes", EpisodeSource, {"records": "runs/explore"}).records == ["runs/explore"]


def shown_by(agent: str) -> list[EpisodeRecord]:
    """Return an oracle's episode of TextCraft as one agent plays it."""
    played = crafting(agent)
    (item,) = sample_tasks(played.tasks("easy_train"), 1)
    episode = demonstrate(item, played.live.new_session(), played.new_agent(), 1)
    return [to_record(episode, EpisodeMeta("collection", "easy_train", 0, "g", 0, datetime.now(UTC), seconds=1.0))]


def crafting(agent: str) -> AgentEnv:
    return AgentEnv(env=EnvSettings("textcraft"), agent=AgentSettings(agent))


def test_replies_that_the_agent_does_not_read_are_refused():
    records = shown_by("react")
    message = "agent.name='tools' finds no action in 3 of 3 replies of episodes.records. It answers "
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        check_agent(crafting("tools"), records, "episodes.records")
    assert "Action: get 2 wheat" in str(caught.value)
    assert check_agent(crafting("react"), records, "episodes.records") == ""
    imported = [one | {"unknown": ["model"]} for one in records]
    assert check_agent(crafting("tools"), imported, "episodes.records") == ""


def test_episodes_with_the_prompt_of_another_agent_have_a_remark():
    records = [*shown_by("act"), *shown_by("react"), talk("a")]
    remark = check_agent(crafting("react"), records, "episodes.records")
    assert remark == "1 of 2 prompts of episodes.records lack the instructions of agent.name=react"
    assert check_agent(crafting("act"), [talk("a")], "episodes.records") == "", "episodes of another environment"
