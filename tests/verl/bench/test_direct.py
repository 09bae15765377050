"""Tests of the learning benchmark in one process: play, orders, and a training step of each kind of arm."""

import pytest
import torch
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from tests.bench.learning.direct.arms import STUDIES, by_chance, by_completion
from tests.bench.learning.direct.engine_policy import EnginePolicy, Llama
from tests.bench.learning.direct.game import HIGHER, LENGTH, PROMPT, TOKENS, number_token, play, tasks
from tests.bench.learning.direct.learner import (
    Arm,
    Learner,
    advantages,
    by_group,
    leave_out_small_groups,
    log_probs,
    remaining,
)
from tests.bench.learning.direct.model import Transformer
from verl_agent.platform.cpu_engine import CpuLanguageEngine
from verl_agent.types import StopReason


def policy() -> Transformer:
    torch.manual_seed(0)
    return Transformer(TOKENS, TOKENS, LENGTH)


def batch(model: Transformer, turns: int = 4):
    items = [item for item in tasks()[:32:2] for _ in range(8)]
    return play(lambda tokens_BL: model(tokens_BL)[:, -1], items, turns, seed=1)


def test_log_probs_of_the_trainer_are_those_of_sampling():
    model = policy()
    played = batch(model)
    again = log_probs(model, played.tokens_BL, played.mask_BT.shape[1]) * played.mask_BT
    assert torch.allclose(again, played.old_BT, atol=1e-5)


def test_records_rewards_and_masks_of_an_episode_agree():
    played = batch(policy())
    for row, episode in enumerate(played.episodes):
        assert int(played.mask_BT[row].sum()) == len(episode.turns)
        assert played.rewards_BT[row, played.last_action_B[row]] == played.rewards_BT[row].sum() == episode.reward
        assert (episode.stop is StopReason.TURN_LIMIT) == (not episode.success)
    assert 0 < sum(episode.success for episode in played.episodes) < len(played.episodes)


def test_remaining_range_follows_from_the_answers():
    assert remaining([1, number_token(12), number_token(6), HIGHER, 0, 0]) == (7, 12)
    assert PROMPT == 2


def test_order_of_completion_sorts_by_length_and_that_of_groups_does_not():
    played = batch(policy(), turns=6)

    def turns_of_updates(order: list[int]) -> list[float]:
        assert sorted(order) == list(range(128))
        return [sum(len(played.episodes[row].turns) for row in order[at : at + 32]) / 32 for at in range(0, 128, 32)]

    completed = turns_of_updates(by_completion(played, 1, 1))
    assert completed[0] < completed[-1] - 1
    for order in (by_group, by_chance):
        means = turns_of_updates(order(played, 1, 1))
        assert max(means) - min(means) < 1
    groups = [played.groups[row] for row in by_group(played, 1, 1)]
    assert all(len(set(groups[at : at + 32])) == 4 for at in range(0, 128, 32))


@pytest.mark.parametrize("arm", [Arm(), Arm(estimator="gae"), Arm(estimator="turn_returns"), Arm(loss="gspo")])
def test_a_step_of_each_kind_of_arm_changes_the_policy(arm):
    model = policy()
    before = model.head[1].weight.clone()
    learner = Learner(arm, 1, model)
    learner.update(batch(model), step=1)
    assert not torch.equal(model.head[1].weight, before)
    assert len(learner.mean_advantages()) == 4


def test_an_arm_may_leave_episodes_out_of_the_loss():
    """The rows count as padding, and not for the statistics of their group."""
    seen = []

    def drop(played, last_value_B):
        cut = torch.tensor([episode.stop is StopReason.TURN_LIMIT for episode in played.episodes])
        played.mask_BT[cut] = 0
        seen.append(last_value_B)

    model = policy()
    Learner(Arm(credit=drop, estimator="gae"), 1, model).update(batch(model), step=1)
    assert seen[0].shape == (128,)
    played = batch(model)
    drop(played, None)
    leave_out_small_groups(played)
    advantages_BT, _ = advantages(played, Arm(), torch.zeros_like(played.mask_BT))
    assert played.mask_BT.any() and advantages_BT.abs().max() < 1e-3, "all remaining episodes are solved"


def test_the_first_arm_of_the_order_study_is_the_product():
    assert next(iter(STUDIES["order"].values())).order is by_group


def test_engines_take_the_same_step_in_float32(tmp_path):
    torch.manual_seed(0)
    start = Llama()
    start.write(tmp_path)
    played, made = None, []
    for kind in (FSDPEngineWithLMHead, CpuLanguageEngine):
        model = EnginePolicy(kind, "float32", tmp_path, 1e-2)
        played = played or batch(model)
        Learner(Arm(engine=(kind, "float32")), 1, model).update(played, step=1)
        made.append(model.model.lm_head.weight.float())
    assert torch.allclose(*made, atol=1e-3)
    assert (made[0] - start.model.lm_head.weight.bfloat16()).abs().median() > 1e-2
