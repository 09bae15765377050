"""Plan of a training run: its settings, read once at the border into typed parts.

Checks, estimates, `verl-agent plan` and the trainer take a plan or a part of it. `verl_agent.training.verl_config`
turns it into verl's config.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from omegaconf import DictConfig, OmegaConf
from typing_extensions import override

from verl_agent.config import plan_parts as parts
from verl_agent.config.keys import check_complete, resolve, value_at
from verl_agent.config.mixture import run_envs
from verl_agent.config.plan_parts import read_model, read_part, read_passes
from verl_agent.config.settings import AgentEnv, RunEnv, read_env


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings that every kind of training has."""

    values: Mapping[str, Any]
    """All settings, nested, without interpolations."""
    schedule: parts.Schedule
    batch: parts.Batch
    lengths: parts.Lengths
    actor: parts.TrainedModel
    """Policy of a run, or the model of supervised training or DPO."""

    @classmethod
    def read(cls, config: DictConfig) -> Self:
        """Read a composed config, whose interpolations are resolved in place.

        Raises:
            ConfigError: a value is missing or does not resolve, or a section of an environment is not allowed.
        """
        resolve(config)
        check_complete(config)
        return cls.of(OmegaConf.to_container(config))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the plan of resolved settings."""
        folder = Path(str(value_at(values, "trainer.default_local_dir"))).resolve()
        return cls(
            values=values,
            schedule=read_part(parts.Schedule, values, folder=folder),
            batch=read_part(parts.Batch, values),
            lengths=read_part(parts.Lengths, values),
            **cls._own(values),
        )

    @classmethod
    def _own(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a subclass, and the model."""
        raise NotImplementedError

    def value(self, key: str) -> Any:
        """Return the value of a dotted key; None if there is no such key."""
        return value_at(self.values, key)

    def located(self) -> Self:
        """Return the plan with the folders of its models.

        Raises:
            ConfigError: one is not on this machine.
        """
        return replace(self, actor=self.actor.located())


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflinePlan(Plan):
    """Plan of supervised training or DPO."""

    played: AgentEnv

    @classmethod
    @override
    def _own(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"actor": read_model(values, "data", "model", "engine", begin=""), "played": read_env(values)}

    @property
    def has_pairs(self) -> bool:
        """True for DPO, whose rows are pairs of episodes."""
        return "preference" in self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan(Plan):
    """Plan of a run of reinforcement learning."""

    critic: parts.TrainedModel | None
    """None for an estimator without."""
    teacher: parts.Teacher | None
    """None without distillation."""
    layout: parts.Layout
    engine: parts.Engine
    estimation: parts.Estimation
    envs: Sequence[RunEnv]
    """Environments, each with its horizon, credit, agent and limits of an episode."""
    log_probs: parts.Passes
    """Passes that compute the log-probs of the policy."""
    reference: parts.Passes
    """Passes that compute those of the initial model or of the teacher."""

    @classmethod
    @override
    def _own(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        envs, estimation, policy = run_envs(values), read_part(parts.Estimation, values), "actor_rollout_ref"
        enabled = value_at(values, "critic.enable")
        has_critic = enabled or (enabled is None and estimation.name == "gae")  # `need_critic` of verl's ppo/utils.py
        return {
            "actor": read_model(values, f"{policy}.actor", f"{policy}.model", f"{policy}.actor.fsdp_config"),
            "critic": read_model(values, "critic", "critic.model", "critic.fsdp") if has_critic else None,
            "teacher": read_part(parts.Teacher, values) if estimation.distils else None,
            "layout": read_part(parts.Layout, values),
            "engine": read_part(parts.Engine, values),
            "estimation": estimation,
            "envs": envs,
            "log_probs": read_passes(values, f"{policy}.rollout", "log_prob_"),
            "reference": read_passes(values, f"{policy}.ref", "log_prob_"),
        }

    @property
    def on_cpu(self) -> bool:
        """True if the recipe is for a CPU."""
        return self.layout.device == "cpu"

    @property
    def trained(self) -> list[parts.TrainedModel]:
        """The policy, and the critic if there is one."""
        return [self.actor, *([self.critic] if self.critic else [])]

    @property
    def judges(self) -> int:
        """Number of judges: one in each process that plays for each environment with a rubric."""
        return int(self.engine.workers or 1) * sum(one.judge.rubric is not None for one in self.envs)

    @override
    def located(self) -> Self:
        critic, teacher = self.critic and self.critic.located(), self.teacher and self.teacher.located()
        return replace(self, actor=self.actor.located(), critic=critic, teacher=teacher)


RUN: ContextVar[RunPlan] = ContextVar("RUN")
"""Plan of the run, for objects that verl makes: it passes on nothing but its config."""


@contextmanager
def running(plan: RunPlan) -> Iterator[None]:
    """Set `RUN` while the block runs."""
    token = RUN.set(plan)
    try:
        yield
    finally:
        RUN.reset(token)


def plan_of_process(config: Any) -> RunPlan:
    """Return `RUN`, or in a process that another one has started the plan of verl's config, a `DictConfig`."""
    return RUN.get(None) or RunPlan.of(OmegaConf.to_container(config, resolve=True))
