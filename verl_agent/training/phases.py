"""Phases of a training step, marked for the watch on hangs (`verl_agent.runs.hang_watch`)."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from verl_agent.runs.hang_watch import PLAYING, mark_phase

Trained = TypeVar("Trained", bound=PPOTrainer)
PLAY, VALIDATE = PLAYING
PHASE_OF_METHOD = {
    "_load_checkpoint": "loading the checkpoint",
    "on_init_end": "sending the weights to the engine",
    "on_sample_begin": PLAY,
    "_compute_old_log_prob": "computing log-probs",
    "_compute_ref_log_prob": "computing log-probs of the reference",
    "_compute_values": "computing values",
    "_compute_advantage": "computing advantages",
    "_update_critic": "updating the critic",
    "_update_actor": "updating the policy",
    "_save_checkpoint": "saving a checkpoint",
    "on_step_end": "sending the weights to the engine",
    "_validate": VALIDATE,
}
"""Methods of verl's trainer and the phase that each begins."""


def marking_phases(trainer: type[Trained]) -> type[Trained]:
    """Make each method of `PHASE_OF_METHOD` of a trainer class mark its phase."""
    for name, phase in PHASE_OF_METHOD.items():
        setattr(trainer, name, _marking(getattr(trainer, name), phase))
    return trainer


def _marking(method: Callable[..., Any], phase: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def marked(self: Any, *args: Any, **kwargs: Any) -> Any:
        mark_phase(self.plan.schedule.folder, phase)
        return method(self, *args, **kwargs)

    return marked
