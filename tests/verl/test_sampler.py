"""Which groups are trained on after failures.

`EpisodeSampler.sample` itself talks to TransferQueue, which runs in Ray actors only: whole training runs cover it.
"""

import pytest
from omegaconf import OmegaConf

from verl_agent.errors import ConfigError, EnvErrorLimitError
from verl_agent.trace.metrics import EpisodeSummary
from verl_agent.training.sampler import EpisodeCrashError, EpisodeSampler, uniform_groups
from verl_agent.types import StopReason


def sampler(
    group_size: int = 4, min_group_size: int = 2, max_env_error_rate: float = 0.5, skip_uniform: bool = False
) -> EpisodeSampler:
    """Created as verl's V1 trainer creates a custom sampler (trainer_base.py, `_build_replay_buffer`)."""
    settings = {
        "group_size": group_size,
        "val_group_size": 1,
        "min_group_size": min_group_size,
        "max_env_error_rate": max_env_error_rate,
        "retries": 2,
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


def test_it_looks_more_often_than_a_small_step_is_long():
    """Verl's own looks every two seconds, of which a step of a small model takes three."""
    assert sampler().poll_interval < 1


def keys(**sizes: int) -> list[str]:
    """Keys `{uid}_{session}_{output}` as verl writes them, groups interleaved."""
    most = max(sizes.values(), default=0)
    return [f"{uid}_{session}_0" for session in range(most) for uid, size in sizes.items() if session < size]


def split(of: EpisodeSampler, rows: list[str], uniform: set[str] = frozenset()) -> tuple[list[str], list[str]]:
    return of._split(rows, of._intact(rows), set(uniform))


def test_groups_with_enough_survivors_are_kept_whole_and_in_order():
    kept, dropped = split(sampler(), keys(a=4, b=1, c=2, d=3))
    assert kept == keys(a=4, c=2, d=3)
    assert dropped == ["b_0_0"]


def test_a_group_that_lost_every_episode_has_nothing_to_drop():
    assert split(sampler(), []) == ([], [])


def test_uids_are_told_apart_though_one_begins_with_the_other():
    kept, dropped = split(sampler(), keys(a=1, ab=3))
    assert (kept, dropped) == (keys(ab=3), ["a_0_0"])


def test_uniform_groups_are_trained_on_unless_they_shall_be_skipped():
    rows = keys(a=4, b=1, c=4)
    assert split(sampler(), rows, {"a", "b"})[0] == keys(a=4, c=4)
    assert split(sampler(skip_uniform=True), rows, {"a", "b"})[0] == keys(c=4)


def test_a_step_of_uniform_groups_alone_keeps_them():
    assert split(sampler(skip_uniform=True), keys(a=4, b=1), {"a", "b"}) == (keys(a=4), ["b_0_0"])


@pytest.mark.parametrize(("group_size", "min_group_size", "needed"), [(8, 2, 2), (1, 2, 1), (4, 4, 4)])
def test_no_more_survivors_are_asked_for_than_a_group_has(group_size, min_group_size, needed):
    """REINFORCE++ and PPO may take one sample a task: then every sound episode is a group."""
    sizes = {f"u{size}": size for size in range(1, group_size + 1)}
    kept, _ = split(sampler(group_size, min_group_size), keys(**sizes))
    assert {key.split("_")[0] for key in kept} == {f"u{size}" for size in range(needed, group_size + 1)}


@pytest.mark.parametrize("lost", [0, 4, 8])
def test_failures_up_to_the_limit_pass(lost):
    sampler()._check_faults(lost, 16)


def test_more_failures_than_the_limit_stop_the_run_and_say_where_to_look():
    with pytest.raises(EnvErrorLimitError) as error:
        sampler()._check_faults(9, 16)
    message = str(error.value)
    assert message.startswith("9 of 16 episodes of this step failed in their environment after all retries")
    assert "env.max_env_error_rate allows 50%" in message
    assert "episode.record_dir" in message


def test_no_failure_is_too_many_where_none_is_allowed():
    sampler(max_env_error_rate=0.0)._check_faults(0, 16)
    with pytest.raises(EnvErrorLimitError, match=r"1 of 16 .* allows 0%"):
        sampler(max_env_error_rate=0.0)._check_faults(1, 16)


def earned(*rewards: float) -> list[EpisodeSummary]:
    return [EpisodeSummary(reward, reward > 0, 3, 10, StopReason.TERMINATED) for reward in rewards]


def test_a_group_is_uniform_if_all_its_episodes_earned_the_same():
    episodes = dict(zip(["a_0", "b_0", "a_1", "b_1", "c_0"], earned(1, 1, 1, 0, 0), strict=True))
    assert uniform_groups(episodes) == {"a", "c"}


def test_the_rows_of_an_episode_are_one_survivor():
    rows = ["a_0_0", "a_0_1", "a_0_2", "b_0_0", "b_1_0", "b_1_1"]
    assert split(sampler(), rows) == (["b_0_0", "b_1_0", "b_1_1"], ["a_0_0", "a_0_1", "a_0_2"])


def test_a_crashed_episode_is_not_taken_for_a_failed_environment():
    crashing = sampler()
    crashing.failure_keys["train"] = {"a"}
    with pytest.raises(EpisodeCrashError, match="1 of 2 groups have an episode that raised"):
        crashing._check_crashes("train", {"a", "b"})


# DAPO


def filtering(batches: int = 0) -> EpisodeSampler:
    """One whose group `gone` lost every episode, while `b` is played."""
    of = sampler()
    of.replace_uniform("reward", batch_size=2, max_inflight=1, max_batches=batches)
    of.finished_keys["train"], of.running_keys["train"] = {"gone"}, {"b"}
    return of


def test_a_group_that_lost_every_episode_is_replaced():
    """Verl would stop the run: such a group has no metric to filter by."""
    of = filtering()
    assert of._dapo_filtered_keys("train")[0] == {"gone"}
    assert of.finished_keys["train"] == {"gone"}
    assert of._dapo_filtered_keys("val")[0] == set()


def test_an_environment_that_is_down_ends_the_search_for_other_groups():
    of = filtering()
    of._dapo_filtered_keys("train")
    of._dapo_filtered_keys("train")
    with pytest.raises(EnvErrorLimitError, match="3 groups of this step lost all their episodes"):
        of._dapo_filtered_keys("train")


def test_a_model_that_never_succeeds_ends_the_search_for_other_groups():
    of = filtering(batches=1)
    of._filtered = 3
    with pytest.raises(ConfigError, match="3 groups of this step earned the same"):
        of._dapo_filtered_keys("train")
