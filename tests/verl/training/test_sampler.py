"""Tests of the groups that are trained on after environment errors.

`EpisodeSampler.sample` needs TransferQueue, which runs in Ray actors only; whole training runs test it.
"""

from collections import Counter

import pytest
from omegaconf import OmegaConf

from verl_agent.errors import ConfigError, EnvErrorLimitError
from verl_agent.trace.episode_summary import EpisodeSummary
from verl_agent.training.invalid_episodes import check_invalid_rate
from verl_agent.training.sampler import EpisodeCrashError, EpisodeSampler
from verl_agent.types import StopReason


def sampler(
    group_size: int = 4, min_group_size: int = 2, max_env_error_rate: float = 0.5, skip_uniform: bool = False
) -> EpisodeSampler:
    """Create a sampler as verl's V1 trainer does (trainer_base.py, `_build_replay_buffer`)."""
    settings = {
        "group_size": group_size,
        "val_group_size": 1,
        "min_group_size": min_group_size,
        "max_env_error_rate": max_env_error_rate,
        "skip_uniform": skip_uniform,
    }
    return EpisodeSampler(
        trainer_mode="sync",
        trainer_config=OmegaConf.create({}),
        max_off_policy_threshold=1,
        max_off_policy_strategy="drop",
        sampler_kwargs=OmegaConf.create(settings),
        refill_fn=lambda count: None,
    )


def test_sampler_polls_several_times_per_second():
    """The default of verl is two seconds, while a step of a small model takes three."""
    assert sampler().poll_interval < 1


def keys(**sizes: int) -> list[str]:
    """Return verl's keys `<group>_<sample>_<segment>` of groups with these sizes, interleaved."""
    largest = max(sizes.values(), default=0)
    return [f"{group}_{sample}_0" for sample in range(largest) for group, size in sizes.items() if sample < size]


def split(episodes: EpisodeSampler, rows: list[str], uniform: set[str] = frozenset()) -> tuple[list[str], list[str]]:
    return episodes._split(rows, episodes._intact(rows), set(uniform))


def test_groups_with_enough_valid_episodes_are_kept_in_order():
    kept, dropped = split(sampler(), keys(a=4, b=1, c=2, d=3))
    assert kept == keys(a=4, c=2, d=3)
    assert dropped == ["b_0_0"]


def test_batch_without_rows_drops_none():
    assert split(sampler(), []) == ([], [])


def test_group_whose_uid_is_a_prefix_of_another_is_separate():
    kept, dropped = split(sampler(), keys(a=1, ab=3))
    assert (kept, dropped) == (keys(ab=3), ["a_0_0"])


def test_uniform_groups_are_dropped_with_skip_uniform_only():
    rows = keys(a=4, b=1, c=4)
    assert split(sampler(), rows, {"a", "b"})[0] == keys(a=4, c=4)
    assert split(sampler(skip_uniform=True), rows, {"a", "b"})[0] == keys(c=4)


def test_step_with_uniform_groups_only_keeps_them():
    assert split(sampler(skip_uniform=True), keys(a=4, b=1), {"a", "b"}) == (keys(a=4), ["b_0_0"])


@pytest.mark.parametrize(("group_size", "min_group_size", "needed"), [(8, 2, 2), (1, 2, 1), (4, 4, 4)])
def test_min_group_size_is_at_most_the_group_size(group_size, min_group_size, needed):
    """REINFORCE++ and PPO may sample one episode per task; every valid episode is then a group."""
    sizes = {f"group{size}": size for size in range(1, group_size + 1)}
    kept, _ = split(sampler(group_size, min_group_size), keys(**sizes))
    assert {key.split("_")[0] for key in kept} == {f"group{size}" for size in range(needed, group_size + 1)}


@pytest.mark.parametrize(
    ("group_size", "found", "kept"),
    [(4, "lr", False), (4, "lrr", False), (4, "lrlr", True), (4, "ll", True), (2, "lr", True), (8, "lrlr", True)],
)
def test_every_seat_of_a_group_needs_enough_valid_episodes(group_size, found, kept):
    """With one match left, GRPO would take the return of the only episode of a seat for its advantage."""
    seats = {f"a_{sample}": seat for sample, seat in enumerate(found)}
    rows = [f"{episode}_0" for episode in seats]
    assert sampler(group_size)._intact(rows, seats) == ({"a"} if kept else set())


# Episodes that are not valid


def invalid(env_errors: int, overlong: int = 0) -> list[EpisodeSummary]:
    stops = [StopReason.ENV_ERROR] * env_errors + [StopReason.OVERLONG_PROMPT] * overlong
    return [EpisodeSummary(0.0, False, 0, 10, stop) for stop in stops]


@pytest.mark.parametrize("lost", [0, 4, 8])
def test_invalid_rate_up_to_the_limit_passes(lost):
    check_invalid_rate(lost, 16, invalid(lost), 0.5)


def test_invalid_rate_above_the_limit_raises_with_the_setting_and_the_records():
    with pytest.raises(EnvErrorLimitError) as error:
        check_invalid_rate(9, 16, invalid(9), 0.5)
    message = str(error.value)
    assert message.startswith(
        "9 of 16 episodes of this step are not valid: 9 failed in their environment after all retries. "
        "env.max_env_error_rate allows 50%."
    )
    assert "episode.record_dir" in message and "prompt" not in message


def test_overlong_prompts_count_towards_the_limit_and_are_named_with_their_remedy():
    with pytest.raises(EnvErrorLimitError) as error:
        check_invalid_rate(9, 16, invalid(2, 7), 0.5)
    message = str(error.value)
    assert "2 failed in their environment after all retries, 7 have a prompt longer than data.max_prompt_length" in (
        message
    )
    assert "data.overlong_prompt=truncate_observation" in message
    with pytest.raises(EnvErrorLimitError) as error:
        check_invalid_rate(4, 4, invalid(0, 4), 1.0)
    assert "environment" not in str(error.value)


def test_action_errors_count_towards_the_limit():
    """An environment that fails at every action must stop the run, and not teach the policy a return of 0."""
    check_invalid_rate(4, 16, invalid(4), 0.5, action_errors=4)
    with pytest.raises(EnvErrorLimitError) as error:
        check_invalid_rate(4, 16, invalid(4), 0.5, action_errors=5)
    assert str(error.value).startswith(
        "9 of 16 episodes of this step have errors: 4 failed in their environment after all retries, 5 ended at an "
        "action that raises the same error in every fresh session. env.max_env_error_rate allows 50%."
    )
    check_invalid_rate(0, 16, [], 1.0, action_errors=16)


def test_invalid_rate_of_zero_allows_no_error():
    check_invalid_rate(0, 16, [], 0.0)
    with pytest.raises(EnvErrorLimitError, match=r"1 of 16 .* allows 0%"):
        check_invalid_rate(1, 16, invalid(1), 0.0)


def test_the_batches_of_a_validation_are_checked_together():
    """A validation of 9 episodes in batches of 7 ends with a small batch."""

    def played(total: int, lost: int) -> Counter[str]:
        return Counter(total=total, lost=lost)

    episodes = sampler(max_env_error_rate=0.4)
    episodes._check_valid(played(7, 1), 3)
    episodes._check_valid(played(2, 1), 3)
    with pytest.raises(EnvErrorLimitError, match=r"^5 of 11 episodes of this step"):
        episodes._check_valid(played(2, 3), 3)
    episodes.begin_validation()  # of the tasks of the test, at the same step
    episodes._check_valid(played(5, 2), 3)
    for validated in (4, None):  # another validation, and training
        with pytest.raises(EnvErrorLimitError, match=r"^1 of 2 episodes of this step"):
            episodes._check_valid(played(2, 1), validated)
    fresh = sampler()
    fresh._check_valid(played(7, 0), 3)
    with pytest.raises(EnvErrorLimitError, match=r"Raise data\.val_batch_size"):
        fresh._check_valid(played(1, 1), 3)


def test_rows_of_one_episode_count_once():
    rows = ["a_0_0", "a_0_1", "a_0_2", "b_0_0", "b_1_0", "b_1_1"]
    assert split(sampler(), rows) == (["b_0_0", "b_1_0", "b_1_1"], ["a_0_0", "a_0_1", "a_0_2"])


def test_exception_of_an_agent_loop_raises_episode_crash_error():
    crashing = sampler()
    crashing.failure_keys["train"] = {"a"}
    with pytest.raises(EpisodeCrashError, match="1 of 2 groups have an episode whose agent loop raised an exception"):
        crashing._check_crashes("train", {"a", "b"})


# DAPO


def filtering_sampler(batches: int = 0) -> EpisodeSampler:
    """Return a sampler whose group `gone` has no valid episode, while group `b` is running."""
    filtering = sampler()
    filtering.replace_uniform("reward", batch_size=2, max_inflight=1, max_batches=batches)
    filtering.finished_keys["train"], filtering.running_keys["train"] = {"gone"}, {"b"}
    return filtering


def test_group_without_valid_episodes_is_replaced():
    """Plain verl would stop the run, because such a group has no metric to filter by."""
    filtering = filtering_sampler()
    assert filtering._dapo_filtered_keys("train")[0] == {"gone"}
    assert filtering.finished_keys["train"] == {"gone"}
    assert filtering._dapo_filtered_keys("val")[0] == set()


def test_more_groups_without_valid_episodes_than_a_batch_raise_env_error_limit_error():
    filtering = filtering_sampler()
    filtering._dapo_filtered_keys("train")
    filtering._dapo_filtered_keys("train")
    with pytest.raises(EnvErrorLimitError, match="3 groups of this step have no valid episode"):
        filtering._dapo_filtered_keys("train")


def test_more_uniform_groups_than_allowed_raise_config_error():
    filtering = filtering_sampler(batches=1)
    filtering._uniform = 3
    with pytest.raises(ConfigError, match="3 groups of this step have the same return"):
        filtering._dapo_filtered_keys("train")
