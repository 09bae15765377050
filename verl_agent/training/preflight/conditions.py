"""Check of settings that are read only together with another setting.

verl and this package accept a value for each of these keys at any time. Where nothing would read it, a run would train
with other settings than its recipe says.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_agent.config.algorithms import CRITICS
from verl_agent.config.keys import leaves, reference
from verl_agent.config.mixture import MixtureEnv
from verl_agent.envs.splits import validates_on_test
from verl_agent.errors import ConfigError

ACTOR = "actor_rollout_ref.actor"
BASE = "agent_base"


@dataclass(frozen=True, slots=True)
class Condition:
    """Keys that are read only if another key has one of some values.

    Attributes:
        keys: dotted keys; one that ends with a dot stands for all keys below it.
        key: the other key.
        values: its values with which the keys are read; empty if no allowed value reads them.
        instead: advice if `values` is empty.
    """

    keys: Sequence[str]
    key: str = ""
    values: Sequence[object] = ()
    instead: str = ""

    @property
    def reason(self) -> str:
        """Reason why the keys have no effect, and what to do."""
        if not self.values:
            return self.instead
        return f"it is read only with {self.key}={' or '.join(_written(value) for value in self.values)}."


CONDITIONS = (
    Condition(("algorithm.norm_adv_by_std_in_grpo",), "algorithm.adv_estimator", ("grpo", "gigpo")),
    Condition(("algorithm.kl_penalty", "algorithm.kl_ctrl."), "algorithm.use_kl_in_reward", (True,)),
    Condition(("algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.target_kl"), "algorithm.kl_ctrl.type", ("adaptive",)),
    Condition(
        tuple(
            f"algorithm.filter_groups.{key}" for key in ("metric", "max_num_gen_batches", "max_inflight_gen_batches")
        ),
        "algorithm.filter_groups.enable",
        (True,),
    ),
    Condition((f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type"), f"{ACTOR}.use_kl_loss", (True,)),
    Condition((f"{ACTOR}.loss_scale_factor",), f"{ACTOR}.loss_agg_mode", ("seq-mean-token-sum-norm",)),
    Condition(
        (
            *(f"{ACTOR}.policy_loss.{key}" for key in ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub")),
            *(f"{ACTOR}.policy_loss.{key}" for key in ("kl_cov_ratio", "ppo_kl_coef", "dro_beta")),
            f"{ACTOR}.tau_pos",
            f"{ACTOR}.tau_neg",
        ),
        instead="it belongs to a loss of verl that is not supported on several turns.",
    ),
    Condition(
        (f"{ACTOR}.data_loader_seed", "critic.data_loader_seed"),
        instead="data.seed decides about the composition of mini-batches.",
    ),
    Condition(
        (
            *(f"critic.{key}" for key in ("ppo_epochs", "ppo_mini_batch_size", "cliprange_value", "loss_agg_mode")),
            "critic.optim.",
        ),
        "algorithm.adv_estimator",
        CRITICS,
    ),
    Condition(("critic.loss_scale_factor",), "critic.loss_agg_mode", ("seq-mean-token-sum-norm",)),
    Condition(("trainer.val_only",), "trainer.val_before_train", (True,)),
    Condition(("trainer.resume_from_path",), "trainer.resume_mode", ("resume_path",)),
    Condition(("agent.context.turns", "agent.context.stride"), "agent.context.keep", ("last", "summary")),
    Condition(("env.hosts.num_cpus", "env.hosts.resource"), "env.hosts.where", ("ray", "auto")),
)
"""Every key of the sections `algorithm`, `actor`, `critic`, `trainer`, `agent.context` and `env.hosts` that depends on
another key and is not checked beside the code that reads it, as in `check_algorithm` and `check_update`."""


def check_conditions(config: DictConfig) -> None:
    """Check that no key is set which nothing reads because of another key.

    A key counts as set if its value differs from that of the base YAML.

    Args:
        config: whole config; its interpolations need not be resolved.

    Raises:
        ConfigError: a key is set that has no effect.
    """
    megatron = OmegaConf.select(config, f"{ACTOR}.strategy") == "megatron"
    known = dict(leaves(reference(BASE, *(["model_engine=megatron"] if megatron else []))))
    for condition in CONDITIONS:
        if any(value in condition.values for value in _values(config, condition.key)):
            continue
        for key in _keys(condition, known):
            value, neutral = OmegaConf.select(config, key), _neutral(config, key, known[key])
            if value != neutral:
                raise ConfigError(
                    f"{key}={_written(value)} has no effect: {condition.reason} Leave {key} at {_written(neutral)}"
                    f"{f', or change {condition.key}' if condition.values else ''}."
                )


def check_test_best(config: DictConfig, envs: Sequence[MixtureEnv]) -> None:
    """Check that a run with `trainer.test_best` chooses a best checkpoint and has other tasks to test it on.

    Raises:
        ConfigError: the setting has no effect, or is not true or false.
    """
    trainer = config.trainer
    if not isinstance(trainer.test_best, bool):
        raise ConfigError(f"trainer.test_best={trainer.test_best!r} is not allowed. Allowed: true, false.")
    if not trainer.test_best:
        return
    for key in ("test_freq", "save_freq"):
        if trainer[key] < 1:
            raise ConfigError(
                f"trainer.test_best=True has no effect with trainer.{key}={trainer[key]}: no checkpoint is chosen. Set "
                f"trainer.{key} to 1 or more, or trainer.test_best=false."
            )
    if all(validates_on_test(one.env) for one in envs):
        raise ConfigError(
            "trainer.test_best=True has no effect: validation plays env.eval_tasks already. Set env.dev_tasks to other "
            "tasks, or trainer.test_best=false."
        )


def _keys(condition: Condition, known: dict[str, Any]) -> Iterator[str]:
    """Yield the keys of a condition that the base YAML has; another engine has other keys of an optimizer."""
    for name in condition.keys:
        yield from (key for key in known if key == name or (name.endswith(".") and key.startswith(name)))


def _values(config: DictConfig, key: str) -> list[Any]:
    """Return the values of a key in the run and in the entries of its mixture, which may change sections."""
    if not key:
        return []
    entries = OmegaConf.select(config, "env.mixture") or ()
    own = key.removeprefix("env.")
    return [OmegaConf.select(config, key), *(OmegaConf.select(OmegaConf.create(entry), own) for entry in entries)]


def _neutral(config: DictConfig, key: str, default: Any) -> Any:
    """Return the value that a key has if nobody sets it; an interpolation takes the present value of its target."""
    if not isinstance(default, str) or "${" not in default:
        return default
    copy = OmegaConf.create({name: config[name] for name in (key.partition(".")[0], "actor_rollout_ref", "data")})
    OmegaConf.update(copy, key, default)
    return OmegaConf.select(copy, key)


def _written(value: object) -> str:
    """Return a value as a recipe has it, with quotes around a text."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else repr(value)
