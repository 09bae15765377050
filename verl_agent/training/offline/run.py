"""Runs of supervised training and DPO: checks before the start, claim of the folder, progress, and training."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.markup import escape

from verl_agent.config.catalogue import may_change
from verl_agent.config.checks import check_keys
from verl_agent.config.keys import check_complete
from verl_agent.config.settings import AgentEnv, read_env
from verl_agent.errors import ConfigError
from verl_agent.models.hf import load_config
from verl_agent.models.resolve import parameters, resolve_model
from verl_agent.platform.detect import use_cpu_device
from verl_agent.runs.best_checkpoint import keep_best, read_best
from verl_agent.runs.console import poll_in_background, progress_bar, redirect_output, report_failure
from verl_agent.runs.folder import RunFolder, check_resume
from verl_agent.runs.identity import is_first_rank
from verl_agent.system.installation import require_attention
from verl_agent.system.resources import (
    SFT_BYTES,
    SFT_MEMORY_GB,
    checkpoint_gb,
    machine_memory,
    memory_needed,
    require_memory,
)
from verl_agent.trace.metrics_log import LoggedStep, MetricsTail
from verl_agent.training.offline.plan import RunPlan, check_batches, total_steps
from verl_agent.training.preflight.estimates import CORE_FLOPS, FLOPS, offline_estimate, shape_of, spell
from verl_agent.training.preflight.loggers import check_loggers
from verl_agent.training.preflight.ranks import check_torchrun_ranks

PLAIN_TEXT: Mapping[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
"""Options of the console for text that is no markup."""
POLL_S = 0.5
LINE_S = 10.0
"""Least seconds between two lines of progress where no bar can be drawn, such as in a file."""


@dataclass(frozen=True, slots=True)
class Method:
    """Training method that uses verl's SFT trainer.

    Attributes:
        base: YAML that its recipes are built on.
        plan: checks a resolved config, with its environment and agent, and counts its rows.
        trainer: module and class of the trainer, as `pkgutil.resolve_name` reads them.
        shown: metrics of `train/` that the progress bar shows.
    """

    command: str
    base: str
    title: str
    plan: Callable[[Mapping[str, Any], AgentEnv], RunPlan]
    trainer: str
    shown: Sequence[str]

    def state(self, logged: LoggedStep) -> str:
        """Format a logged step."""
        return ", ".join(f"{name} {logged.values.get(f'train/{name}', 0.0):.3f}" for name in self.shown)


def run(config: DictConfig, method: Method) -> None:
    """Train to the last step of a composed recipe, or resume from its last checkpoint."""
    check_keys(config, method.base)
    try:
        OmegaConf.resolve(config)
        folder = RunFolder.create(config.trainer.default_local_dir)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the config does not resolve: {error}") from error
    with redirect_output(folder.log) as console:
        shown = console if is_first_rank() else Console(quiet=True)
        check_complete(config)
        check_loggers(config.trainer.logger)
        check_resume(config.trainer, "model.path")
        plain: Any = OmegaConf.to_container(config)
        plan = method.plan(plain, read_env(plain))
        check_batches(plain, plan)
        steps = total_steps(plain, plan.rows)
        with open_dict(config):
            config.trainer.default_local_dir = str(folder.root)
            config.model.path = resolve_model(config.model.path, key="model.path")
        load_config(config.model.path, "model.path")
        require_attention("model", plain["model"], plain["engine"], not use_cpu_device())
        memory_gb = memory_needed(parameters(config.model.path), SFT_MEMORY_GB, SFT_BYTES)
        require_memory(machine_memory(), memory_gb if use_cpu_device() else 0.0)
        step = claim_run(config, folder, {"command": method.command, **plain, **plan.facts}, method, shown)
        if step >= steps:
            shown.print(f"All {steps} steps are done already: {folder.root}", soft_wrap=True)
            return
        shown.print(f"{plan.summary}{describe_need(config, plan)}", **PLAIN_TEXT)
        if is_first_rank():  # the others would read while it removes
            each_gb = checkpoint_gb(parameters(config.model.path), list(config.checkpoint.save_contents))
            folder.require_room(each_gb, config.trainer.max_ckpt_to_keep)
        if step:
            resharded = check_torchrun_ranks(folder.root / f"global_step_{step}", plain)
            shown.print("\n".join(filter(None, (resharded, f"resuming after step {step} of {steps}"))), **PLAIN_TEXT)
        with report_failure(folder, console), showing_progress(folder, steps, method, console):
            train_in_process(config, folder, method, plan)
            if folder.last_step < steps:
                raise RuntimeError(f"the training ended after step {folder.last_step} of {steps}.")
        if best := read_best(folder.root):
            shown.print(f"best checkpoint: step {best.step}, {best.measure} {best.value:.3f}: {folder.root / 'best'}")
        shown.print(f"{method.title}: {folder.root}   log: {folder.log}", soft_wrap=True)


def claim_run(
    config: DictConfig, folder: RunFolder, settings: Mapping[str, Any], method: Method, console: Console
) -> int:
    """Claim the folder of a run, and remove old checkpoints.

    Returns:
        The step to resume after; 0 for a new run.
    """
    step, warning = folder.claim(settings, may_change(method.command), config.trainer.resume_mode)
    if warning:
        console.print(f"[yellow]{escape(warning)}[/]", highlight=False, soft_wrap=True)
    if step:
        config.trainer.resume_mode = "auto"  # verl knows no other mode, and reads the tracker
    if step and is_first_rank():
        keep_best(folder.root)
        folder.prune(config.trainer.max_ckpt_to_keep)
    return step


def describe_need(config: DictConfig, plan: RunPlan) -> str:
    """Return the estimated memory and time as the end of a sentence; empty if the architecture is not known."""
    shape, ranks = shape_of(config.model.path), int(os.environ.get("WORLD_SIZE", "1"))
    if shape is None:
        return ""
    cores, rows = len(os.sched_getaffinity(0)), plan.rows * (2 if "preference" in config else 1)
    rate = CORE_FLOPS * cores if use_cpu_device() else FLOPS * ranks
    gpu_gb, seconds = offline_estimate(OmegaConf.to_container(config), shape, rows, rate, ranks)
    memory_gb = memory_needed(parameters(config.model.path), SFT_MEMORY_GB, SFT_BYTES)
    memory = f"{memory_gb:.0f} GB of memory" if use_cpu_device() else f"{gpu_gb:.0f} GB of each GPU"
    return f"; estimated: {memory}, {spell(seconds)} of computing at most, without validation"


def train_in_process(config: DictConfig, folder: RunFolder, method: Method, plan: RunPlan) -> None:
    """Train with verl's trainer, in this process."""
    folder.metrics.parent.mkdir(parents=True, exist_ok=True)
    os.environ["VERL_FILE_LOGGER_PATH"] = str(folder.metrics)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from verl_agent.platform.plugin import require_plugin  # importing it imports verl

    require_plugin()
    from verl_agent.training.offline.sft_trainer import run_trainer

    with one_rank():
        run_trainer(resolve_name(method.trainer), config, plan)


@contextmanager
def one_rank() -> Iterator[None]:
    """Set the environment variables of a process group of one rank, unless torchrun has set those of several.

    The group meets at a file: a free port could be taken by another process before the group listens at it.
    """
    if "RANK" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",  # read, and not used (verl, single_controller/base/worker.py:199)
            "MASTER_PORT": "0",
            "DIST_INIT_METHOD": f"file://{folder}/group?rank=0&world_size=1",  # verl, utils/distributed.py:66
        }
        yield


@contextmanager
def showing_progress(folder: RunFolder, steps: int, method: Method, console: Console) -> Iterator[None]:
    """Show a progress bar with the metrics of the last step while the block runs; outside a terminal, show lines."""
    tail = MetricsTail(folder.metrics)
    plain, first_rank, printed_s = not console.is_terminal, is_first_rank(), -LINE_S
    hidden = plain or not first_rank
    with progress_bar(console, "steps", disable=hidden) as progress:
        bar = progress.add_task(f"{method.title}, loading the model", total=steps, completed=folder.last_step)

        def update() -> None:
            nonlocal printed_s
            for logged in tail.read():
                if "train/loss" not in logged.values:
                    continue
                progress.update(bar, completed=logged.step, description=f"{method.title}, {method.state(logged)}")
                now_s = time.monotonic()
                if plain and first_rank and (now_s - printed_s >= LINE_S or logged.step >= steps):
                    printed_s = now_s
                    line = f"step {logged.step}/{steps}  {method.state(logged)}"
                    console.print(line, **PLAIN_TEXT)

        with poll_in_background(update, POLL_S):
            yield
