"""The folder of a run: what lies where, and whether a checkpoint in it belongs to the recipe at hand."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from verl_agent.errors import ConfigError
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.types import TaskItem

RL_IDENTITY = (
    "env.name",
    "env.options",
    "agent",
    "env.train_tasks",
    "env.mixture",
    "horizon.max_turns",
    "horizon.steps_per_stage",
    "horizon.grow_by",
    "horizon.up_to",
    "horizon.adaptive",
    "credit",
    "episode.max_tokens",
    "episode.max_tokens_per_turn",
    "episode.on_truncated_turn",
    "data.train_batch_size",
    "data.train_max_samples",
    "data.seed",
    "data.shuffle",
    "data.max_prompt_length",
    "data.max_response_length",
    "data.apply_chat_template_kwargs",
    "algorithm.adv_estimator",
    "algorithm.gamma",
    "algorithm.lam",
    "algorithm.norm_adv_by_std_in_grpo",
    "algorithm.use_kl_in_reward",
    "algorithm.filter_groups",
    "algorithm.rollout_correction",
    "critic.model.path",
    "critic.optim",
    "critic.ppo_epochs",
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.lora_rank",
    "actor_rollout_ref.model.lora_alpha",
    "actor_rollout_ref.model.target_modules",
    "actor_rollout_ref.actor.strategy",
    "actor_rollout_ref.actor.optim",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.ppo_epochs",
    "actor_rollout_ref.actor.policy_loss",
    "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.kl_loss_coef",
    "actor_rollout_ref.actor.kl_loss_type",
    "actor_rollout_ref.actor.entropy_coeff",
    "actor_rollout_ref.actor.loss_agg_mode",
    "actor_rollout_ref.actor.loss_scale_factor",
    "actor_rollout_ref.actor.clip_ratio_low",
    "actor_rollout_ref.actor.clip_ratio_high",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.temperature",
    "actor_rollout_ref.rollout.top_p",
    "actor_rollout_ref.rollout.top_k",
    "trainer.critic_warmup",
    "trainer.v1.sampler.sampler_kwargs.skip_uniform",
    "trainer.v1.sampler.sampler_kwargs.min_group_size",
)
"""Settings that a run of reinforcement learning keeps from its first step to its last."""
SFT_IDENTITY = (
    "env.name",
    "env.options",
    "agent",
    "env.train_tasks",
    "episodes.oracle",
    "data.train_max_samples",
    "data.train_batch_size",
    "data.max_length",
    "data.apply_chat_template_kwargs",
    "model.path",
    "optim",
    "trainer.total_epochs",
    "trainer.total_training_steps",
)
"""The same for supervised training, which counts its steps from its tasks."""
DPO_IDENTITY = (
    "env.name",
    "env.options",
    "agent",
    "env.eval_tasks",
    "preference.beta",
    "preference.nll_coef",
    "data.train_max_samples",
    "data.train_batch_size",
    "data.max_length",
    "data.apply_chat_template_kwargs",
    "model.path",
    "optim",
    "trainer.total_epochs",
    "trainer.total_training_steps",
)
"""The same for preference learning; its pairs are compared by what they say."""


IDENTITY = "run.json"
"""File in a run's folder that says what the run is."""
RESUME_MODES = ("auto", "disable")


def read_identity(root: Path) -> dict[str, Any]:
    """What the run in a folder is, as `RunFolder.check_identity` noted it; empty where no run is."""
    note = root / IDENTITY
    found: dict[str, Any] = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}
    return found


def check_resume(trainer: Mapping[str, Any], model_key: str) -> None:
    """Refuse to go on from a checkpoint in another folder: nothing there says that it is of this recipe.

    Args:
        trainer: section `trainer`.
        model_key: the setting that names the model to begin with.

    Raises:
        ConfigError: it is asked for.
    """
    mode, path = trainer.get("resume_mode"), trainer.get("resume_from_path")
    key, value = ("resume_from_path", path) if path is not None else ("resume_mode", mode)
    if path is not None or mode not in RESUME_MODES:
        raise ConfigError(
            f"trainer.{key}={value!r} is not allowed: a run goes on in its own folder, which knows its recipe. Allowed "
            f"are trainer.resume_mode={' or '.join(RESUME_MODES)}, without a path. To go on from an earlier step, copy "
            "the run's folder, write the step into its latest_checkpointed_iteration.txt and name the copy in "
            f"trainer.default_local_dir; to begin with a checkpoint's weights, name it in {model_key}."
        )


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run; each start writes files of its own, so that nothing is overwritten.

    Attributes:
        root: `trainer.default_local_dir`.
        started: name of this start.
    """

    root: Path
    started: str

    @classmethod
    def at(cls, root: str | Path) -> "RunFolder":
        """The folder for a start now."""
        return cls(Path(root).resolve(), f"{datetime.now(UTC):%Y%m%dT%H%M%S}")

    @property
    def log(self) -> Path:
        """What Ray, verl and the engine print."""
        return self.root / "logs" / f"{self.started}.log"

    @property
    def metrics(self) -> Path:
        """Metrics of this start, a line a step."""
        return self.root / "metrics" / f"{self.started}.jsonl"

    @property
    def all_metrics(self) -> list[Path]:
        """Metrics of all starts, oldest first."""
        return sorted((self.root / "metrics").glob("*.jsonl"))

    @property
    def curves(self) -> Path:
        """The learning curves."""
        return self.root / "curves.png"

    @property
    def last_step(self) -> int:
        """Step of the last complete checkpoint, 0 if there is none."""
        tracker = self.root / "latest_checkpointed_iteration.txt"
        return int(tracker.read_text()) if tracker.is_file() else 0

    def finished(self, total_steps: int) -> bool:
        """Whether step `total_steps` is saved and its metrics, which come after its validation, are logged."""
        return self.last_step >= total_steps and max(read_metrics(self.all_metrics), default=0) >= total_steps

    def prune(self, keep: int | None, running: bool = False) -> None:
        """Remove old checkpoints: verl counts those of its own start only, and leaves the folders of those it removes.

        Args:
            keep: checkpoints that stay, the latest complete one among them; None keeps all.
            running: whether a trainer may be writing the next one, which then stays.
        """
        if not keep:
            return
        last = self.last_step
        steps = {int(path.name[12:]): path for path in self.root.glob("global_step_*") if path.name[12:].isdecimal()}
        complete = sorted(step for step in steps if step <= last and any(steps[step].glob("*/")))
        for step in steps.keys() - set(complete[-keep:]):
            if step <= last or not running:
                shutil.rmtree(steps[step], ignore_errors=running)

    def check_identity(self, now: Mapping[str, Any], resume: bool) -> None:
        """Note what the run is; on resuming, refuse a recipe that is another one.

        Args:
            now: the settings that a run keeps, see `identity`.
            resume: whether checkpoints in the folder are continued.

        Raises:
            ConfigError: the folder holds a checkpoint of another recipe.
        """
        note, before = self.root / IDENTITY, read_identity(self.root)
        if resume and self.last_step and not before:
            raise ConfigError(
                f"{self.root} holds step {self.last_step} of a run whose {IDENTITY} is missing: nothing says of which "
                "recipe. Choose another trainer.default_local_dir, or put the file back."
            )
        if resume and self.last_step:
            changed = [one for key in now if key in before for one in differences(key, before[key], now[key])]
            if changed:
                (key, was, value), names = changed[0], ", ".join(one[0] for one in changed)
                raise ConfigError(
                    f"{self.root} holds step {self.last_step} of another recipe: {names} changed ({key} was {was!r}, "
                    f"is {value!r}). Give this one a name of its own (trainer.experiment_name=...), or delete the "
                    "folder."
                )
        if not resume and self.last_step:
            raise ConfigError(
                f"{self.root} holds step {self.last_step}, and trainer.resume_mode=disable would mix two runs. Choose "
                "another trainer.default_local_dir, or delete the folder."
            )
        self.root.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")


def differences(key: str, was: Any, value: Any) -> list[tuple[str, Any, Any]]:
    """Where two values of a setting differ: dotted keys below it, with the one value and the other."""
    if isinstance(was, Mapping) and isinstance(value, Mapping):
        names = [*was, *(name for name in value if name not in was)]
        return [one for name in names for one in differences(f"{key}.{name}", was.get(name), value.get(name))]
    return [(key, was, value)] if was != value else []


def identity(config: Mapping[str, Any], keys: Sequence[str], tasks: Sequence[TaskItem]) -> dict[str, Any]:
    """What makes a run that run.

    Args:
        config: the whole config, with paths as the recipe has them.
        keys: `RL_IDENTITY` or `SFT_IDENTITY`.
        tasks: that are trained on; a file of ids may change under the same name.
    """
    ids = "\n".join(item.id for item in tasks)
    digest = hashlib.sha256(ids.encode()).hexdigest()[:16]
    return {key: select(config, key) for key in keys} | {"ids of env.train_tasks": digest}


def select(config: Mapping[str, Any], key: str) -> Any:
    """A value by its dotted key, None where a section is missing."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
