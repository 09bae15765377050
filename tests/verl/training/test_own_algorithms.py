"""Test algorithms of other packages: those of the example, and broken ones that a check or a run refuses."""

import os
import subprocess
import sys
from functools import partial

import pytest
import torch

from tests.support.composing import ROOT, check_settings
from tests.support.estimators import TurnRow, turn_advantages
from tests.support.letters import LOST, SHORT, WON
from tests.support.packages import install_example, write_metadata
from verl_agent.config.algorithms import BUILT_IN, find_estimator, find_loss
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.errors import ConfigError
from verl_agent.training.estimator_check import check_estimator
from verl_agent.training.own_estimators import register
from verl_agent.training.policy_losses import own_loss

BROKEN = '''
import random
from collections import defaultdict
from statistics import fmean

import torch

from verl_agent import Estimator

def totals(batch):
    found = defaultdict(float)
    for turn in batch.turns:
        found[turn.episode] += turn.reward
    return found

def of_episode(change):
    """Return an estimator that changes the return of an episode."""
    return lambda batch: batch.on_tokens([change(totals(batch)[turn.episode], turn, batch) for turn in batch.turns])

def group_deviation(value, turn, batch):
    group = [total for name, total in totals(batch).items() if name.startswith(turn.group)]
    return value / torch.tensor(group).std().item()

narrow = Estimator(lambda batch: torch.zeros(3))
whole = Estimator(lambda batch: torch.zeros_like(batch.mask_BT))
plain = Estimator(lambda batch: [turn.reward for turn in batch.turns])
endless = Estimator(of_episode(group_deviation))
crashing = Estimator(of_episode(lambda value, turn, batch: 1 / 0))
random_ = Estimator(of_episode(lambda value, turn, batch: value + random.random()))
by_position = Estimator(of_episode(lambda value, turn, batch: value + turn.row))
by_name = Estimator(of_episode(lambda value, turn, batch: value + (turn.episode < "4")))
by_size = Estimator(of_episode(lambda value, turn, batch: value - fmean(totals(batch).values()) * len(batch.mask_BT)))
by_row = Estimator(lambda batch: batch.on_tokens([
    sum(other.reward for other in batch.turns if other.row == turn.row) for turn in batch.turns
]))
one_row = Estimator(by_row.function, several_rows=False)
reading = Estimator(of_episode(lambda value, turn, batch: value - turn.value))
reading_tokens = Estimator(lambda batch: batch.values_BT)
silent_critic = Estimator(of_episode(lambda value, turn, batch: value), critic="turn")
wrong_sign = Estimator(of_episode(lambda value, turn, batch: -value))
never_zero = Estimator(of_episode(lambda value, turn, batch: value), uniform_is_zero=True)
two_ways = Estimator(lambda batch: batch.on_tokens([0.0] * len(batch.turns)), reference=of_episode(lambda v, t, b: v))

def with_critic(batch, *, scale=1.0):
    values = [turn.value for turn in batch.turns]
    returns = batch.on_tokens([totals(batch)[turn.episode] for turn in batch.turns])
    assert batch.values_BT.shape == batch.mask_BT.shape
    return scale * (returns - batch.on_tokens(values)), returns

critic = Estimator(with_critic, critic="turn", reads=("credit.turn_gamma",))
bootstrapped = Estimator(with_critic, critic="turn", reads=("credit.turn_gamma",), bootstraps=True)
no_estimator = with_critic

def vector(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights=None):
    return -advantages * log_prob, {}
'''
FAILS = {
    "narrow": "right shape",
    "whole": "right shape",
    "plain": "right shape",
    "endless": "right shape",
    "crashing": "right shape",
    "reading_tokens": "right shape",
    "silent_critic": "right shape",
    "random_": "the same batch",
    "by_position": "order of rows",
    "by_name": "names do not matter",
    "by_size": "padding does not matter",
    "by_row": "several rows",
    "reading": "values need a critic",
    "wrong_sign": "better outcome",
    "never_zero": "equal returns",
    "two_ways": "reference agrees",
}
"""Estimators of `BROKEN`, with a part of the name of the check that each fails."""
RETURNED = {
    "narrow": r"returned \(3,\) of torch\.float32\. Allowed: advantages, a float tensor of the shape of",
    "whole": r"of torch\.int64\. Allowed: advantages, a float tensor",
    "plain": r"returned \[0\.0, 1\.0, .*\. Allowed: advantages, a float tensor",
    "endless": r"returned NaN or an infinite number, first for turn 0 of episode b_0",
    "reading_tokens": r"reads the critic's values, and the run has no critic",
    "silent_critic": r"A critic learns the returns, so a tuple of both is needed",
}
ROWS: list[TurnRow] = [
    ("a_0_0", WON, [0.0, 1.0], ["start", "stone"]),
    ("a_1_0", LOST, [0.0, -0.5, 0.25], ["start", "stone", "wall"]),
    ("b_0_0", SHORT, [0.5], ["start"]),
]


@pytest.fixture(scope="module", autouse=True)
def packages(tmp_path_factory):
    """Both packages, on the path of this process; the folders."""
    folder = tmp_path_factory.mktemp("packages")
    names = [*FAILS, "one_row", "critic", "bootstrapped", "no_estimator"]
    entries = {name: f"broken_algorithms:{name}" for name in names}
    groups = {"verl_agent.estimators": entries, "verl_agent.policy_losses": {"vector": "broken_algorithms:vector"}}
    write_metadata(folder, "broken-algorithms", groups)
    folder.joinpath("broken_algorithms.py").write_text(BROKEN)
    added = [str(path) for path in install_example("own_algorithms", folder)]
    sys.path[:0] = added
    yield added
    for path in added:
        sys.path.remove(path)


check = partial(check_settings, ROOT / "recipes/textcraft/grpo.yaml")


@pytest.mark.parametrize("name", [*BUILT_IN, "leave_one_out", "critic", "one_row"])
def test_a_sound_estimator_fulfils_the_contract(name):
    report = check_estimator(name)
    assert not report.violations, str(report)


@pytest.mark.parametrize("name", FAILS)
def test_the_check_finds_what_is_wrong(name):
    report = check_estimator(name)
    assert [violation.check for violation in report.violations if FAILS[name] in violation.check], str(report)


@pytest.mark.parametrize("name", RETURNED)
def test_a_run_refuses_what_an_estimator_returns(name):
    with pytest.raises(ConfigError, match=RETURNED[name]):
        register(name)
        turn_advantages(name, ROWS)


def test_the_estimator_of_the_example_computes_the_advantages_of_rloo():
    register("leave_one_out")
    own, rloo = (turn_advantages(name, ROWS[:2]).batch["advantages"] for name in ("leave_one_out", "rloo"))
    assert torch.allclose(own, rloo, atol=1e-6) and own.abs().sum() > 0
    half = turn_advantages("leave_one_out", ROWS[:2], RewardShaping(options={"below": 0.5})).batch["advantages"]
    assert torch.equal(half, torch.where(own < 0, own / 2, own))


def test_a_package_cannot_replace_an_estimator_that_is_built_in(tmp_path, monkeypatch):
    write_metadata(tmp_path, "other-grpo", {"verl_agent.estimators": {"grpo": "broken_algorithms:critic"}})
    monkeypatch.syspath_prepend(tmp_path)
    find_estimator.cache_clear()
    with pytest.raises(ConfigError, match="'grpo' is built in, and the package 'other-grpo' has the same name"):
        find_estimator("grpo")


def test_a_package_cannot_replace_a_loss_that_is_built_in(tmp_path, monkeypatch):
    write_metadata(tmp_path, "other-gspo", {"verl_agent.policy_losses": {"gspo": "broken_algorithms:vector"}})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="'gspo' is built in, and the package 'other-gspo' has the same name"):
        find_loss("gspo")


def test_losses_and_estimators_are_registered_by_what_workers_and_the_runner_import(packages):
    code = (
        "import verl_agent.training.policy_losses, verl.trainer.ppo.core_algos as c;"
        "c.get_policy_loss_fn('vector'); import verl_agent.training.partial; c.get_adv_estimator_fn('turn_gae')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*packages, str(ROOT)])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_a_loss_of_another_shape_raises_config_error():
    columns = [torch.zeros(2, 3) for _ in range(4)]
    with pytest.raises(ConfigError, match=r"(?s)loss_mode='vector' returned .* Allowed: a pair of a loss"):
        own_loss("vector")(*columns, "token-mean", None)


@pytest.mark.parametrize(
    "changes",
    [
        ("algorithm.adv_estimator=leave_one_out", "credit.options.below=0.5"),
        ("algorithm.adv_estimator=leave_one_out", "credit.place=turn"),
        ("algorithm.adv_estimator=leave_one_out", "agent.context.keep=last"),
        ("algorithm.adv_estimator=critic", "critic.enable=true", "critic.model.path=x", "critic.optim.lr=1e-5",
         "credit.turn_gamma=0.9", "credit.options.scale=2"),
        ("algorithm.adv_estimator=bootstrapped", "critic.enable=true", "critic.model.path=x",
         "credit.truncated=bootstrap", "credit.turn_gamma=0.9"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=plain_gradient",),
        ("horizon.max_turns=[2,4]", "horizon.schedule=waves", "horizon.options.period=4"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_settings_of_own_algorithms_pass(changes):
    check(*changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["algorithm.adv_estimator=leave_one_ot"], "Did you mean 'leave_one_out'?"),
        (["actor_rollout_ref.actor.policy_loss.loss_mode=plain_gradent"], "Did you mean 'plain_gradient'?"),
        (["algorithm.adv_estimator=no_estimator"], "which is not an Estimator with a function"),
        (["algorithm.adv_estimator=leave_one_out", "actor_rollout_ref.rollout.n=1"], "actor_rollout_ref.rollout.n=1"),
        (["algorithm.adv_estimator=leave_one_out", "credit.options.bellow=1"], "options of leave_one_out: ['below']"),
        (["algorithm.adv_estimator=leave_one_out", "credit.turn_lam=0.9"], "credit.turn_lam=0.9 has no effect"),
        (["algorithm.adv_estimator=critic"], "critic.enable=null is not allowed"),
        (["algorithm.adv_estimator=critic", "critic.enable=true"], "critic.model.path="),
        (
            [
                "algorithm.adv_estimator=critic",
                "critic.enable=true",
                "critic.model.path=x",
                "credit.truncated=bootstrap",
                "credit.turn_gamma=0.9",
            ],
            "bootstraps=True declares it",
        ),
        (["algorithm.adv_estimator=reading", "critic.enable=true"], "critic.enable=true"),
        (["algorithm.adv_estimator=one_row", "agent.context.keep=last"], "with agent.context.keep='last'"),
        (
            ["algorithm.adv_estimator=leave_one_out", "algorithm.use_kl_in_reward=true"],
            "algorithm.use_kl_in_reward=true",
        ),
        (["horizon.options.period=4"], "has no effect: it is read only with horizon.schedule"),
    ],
    ids=str,
)
def test_settings_that_an_own_algorithm_does_not_allow_raise_config_error(changes, message):
    with pytest.raises(ConfigError) as error:
        check(*changes)
    assert message in str(error.value)
