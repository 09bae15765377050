"""Runs of supervised training and DPO: their checks, estimates, progress and training."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from statistics import fmean
from typing import Any

from typing_extensions import override

from verl_agent.config.plan import OfflinePlan
from verl_agent.errors import ConfigError, counted
from verl_agent.models.hf import load_config, positions
from verl_agent.models.portable import check_portable
from verl_agent.models.resolve import parameters
from verl_agent.platform.detect import use_cpu_device
from verl_agent.runs.best_checkpoint import keep_best, read_best
from verl_agent.runs.console import poll_in_background, progress_bar
from verl_agent.runs.folder import RunFolder
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
from verl_agent.terminal import Console, say
from verl_agent.trace.curves import plot_curves
from verl_agent.trace.metrics_log import LoggedStep, MetricsTail
from verl_agent.training.job import TrainingJob
from verl_agent.training.offline.estimate import computing_s, measure_rows
from verl_agent.training.offline.plan import Rows, check_batches, total_steps
from verl_agent.training.offline.play import check_play, player_of
from verl_agent.training.preflight.computation import check_computation
from verl_agent.training.preflight.estimates import FLOPS, offline_gb, shape_of, spell
from verl_agent.training.preflight.machine import cpu_flops
from verl_agent.training.preflight.ranks import check_torchrun_ranks
from verl_agent.training.verl_config import reference_weights, to_verl_offline

POLL_S = 0.5
LINE_S = 10.0
"""Least seconds between two lines of progress where no bar can be drawn, such as in a file."""


@dataclass(frozen=True, slots=True)
class Method:
    """Training method that uses verl's SFT trainer.

    Attributes:
        base: YAML that its recipes are built on.
        rows: checks a plan and its environment, and counts its rows.
        trainer: module and class of the trainer, as `pkgutil.resolve_name` reads them.
        shown: metrics of `train/` that the progress bar shows.
    """

    command: str
    base: str
    title: str
    rows: Callable[[OfflinePlan], Rows]
    trainer: str
    shown: Sequence[str]

    def state(self, logged: LoggedStep) -> str:
        """Format a logged step."""
        return ", ".join(f"{name} {logged.values.get(f'train/{name}', 0.0):.3f}" for name in self.shown)


class OfflineTraining(TrainingJob):
    """Supervised training or DPO with verl's SFT trainer, in this process."""

    model_key = "model.path"

    def __init__(self, plan: OfflinePlan, method: Method) -> None:
        super().__init__(plan)
        self.plan, self.method, self.command = plan, method, method.command

    @override
    def check(self) -> None:
        super().check()
        self.rows = rows = self.method.rows(self.plan)
        check_batches(self.plan, rows)
        self.steps = total_steps(self.plan, rows.count)
        name, self.plan = self.plan.actor.path, self.plan.located()
        model, on_cpu = self.plan.actor, use_cpu_device()
        self._check_length(name)
        may_be_random = self.command == "sft"
        check_computation(
            "model", {**model.model, "path": model.path}, int(self.plan.lengths.row), may_be_random=may_be_random
        )
        require_attention("model", model.model, model.layout, not on_cpu)
        self._memory_gb = memory_needed(parameters(model.path), SFT_MEMORY_GB, SFT_BYTES)
        require_memory(machine_memory(), self._memory_gb if on_cpu else 0.0)
        self.settings = {
            "command": self.command,
            **self.plan.values,
            **rows.facts,
            **check_play(self.plan, rows.recorded),
            **(reference_weights(self.model_key, model.path) if self.plan.has_pairs else {}),
        }
        self.checkpoint_gb = checkpoint_gb(parameters(model.path), list(model.checkpoint["save_contents"]))

    def _check_length(self, name: str) -> None:
        """Check that the model can be stored, and read an episode of `data.max_length` tokens.

        Args:
            name: name of the model in the recipe.

        Raises:
            ConfigError: the model has no config that can be read, is not portable, or its context is shorter.
        """
        path, length = self.plan.actor.path, int(self.plan.lengths.row)
        model = load_config(path, self.model_key)
        check_portable(model, f"model.path={path!r}")
        longest = positions(model)
        if longest is not None and length > longest:
            raise ConfigError(
                f"data.max_length={length} allows episodes that model.path={name!r} cannot read: it supports at most "
                f"{longest} tokens. Lower data.max_length, or choose a model with a longer context."
            )

    @override
    def require_room(self) -> None:
        self.tell(f"{self.rows.summary}{self._describe_memory()}")
        super().require_room()

    def _describe_memory(self) -> str:
        """Return the estimated memory as the end of a sentence; empty if the architecture is not known."""
        if use_cpu_device():
            return f"; estimated: {self._memory_gb:.0f} GB of memory"
        shape, ranks = shape_of(self.plan.actor.path), int(os.environ.get("WORLD_SIZE", "1"))
        return f"; estimated: {offline_gb(self.plan, shape, ranks):.0f} GB of each GPU" if shape else ""

    @override
    def resharded(self) -> list[str]:
        line = check_torchrun_ranks(self.folder.root / f"global_step_{self.step}", self.plan.actor)
        return [line] if line else []

    @override
    def work(self) -> None:
        with showing_progress(self.folder, self.steps, self.method, self.console):
            self._train()
            if self.folder.last_step < self.steps:
                raise RuntimeError(f"the training ended after step {self.folder.last_step} of {self.steps}.")

    def _train(self) -> None:
        self.folder.metrics.parent.mkdir(parents=True, exist_ok=True)
        os.environ["VERL_FILE_LOGGER_PATH"] = str(self.folder.metrics)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from verl_agent.platform.plugin import require_plugin  # importing it imports verl

        require_plugin()
        from verl_agent.training.offline.sft_trainer import run_trainer

        rows, config = replace(self.rows, datasets=self._datasets), to_verl_offline(self.plan, self.step)
        with one_rank():
            run_trainer(resolve_name(self.method.trainer), self.plan, config, rows)

    def _datasets(self, encoder: Any) -> tuple[Any, Any]:
        """Encode the rows, and print the estimated time, which their lengths decide."""
        shape, on_cpu = shape_of(self.plan.actor.path), use_cpu_device()
        train, validation = self.rows.datasets(encoder)
        if shape is not None and is_first_rank():
            ranks = int(os.environ.get("WORLD_SIZE", "1"))
            learned, validated = (measure_rows(rows, self.plan, ranks, on_cpu) for rows in (train, validation))
            rate = cpu_flops(self.plan.actor) * ranks_at_once() if on_cpu else FLOPS * ranks
            training_s, validating_s = computing_s(self.plan, shape, learned, validated, self.steps - self.step, rate)
            tokens, also = learned.tokens, f" and {spell(validating_s)} of validation" if validating_s else ""
            text = f"{counted(len(tokens), 'row')} of {fmean(tokens):.0f} tokens on average, at most {max(tokens)}; "
            text += f"estimated: {spell(training_s)} of training{also}"
            self.tell(f"{text}, without trainer.play" if player_of(self.plan) else text)
        return train, validation

    @override
    def report(self, ended: bool) -> None:
        if not ended:
            return
        if (player := player_of(self.plan)) and is_first_rank():  # a run that was killed may not have played the last
            player.play(self.folder.last_step)
            keep_best(self.folder.root)
        with suppress(ConfigError):  # without a metric to plot
            self.tell(f"curves: {plot_curves(self.folder.all_metrics, self.folder.curves, self.folder.root.name)}")
        if best := read_best(self.folder.root):
            where = self.folder.root / "best"
            self.tell(f"best checkpoint: step {best.step}, {best.measure} {best.value:.3f}: {where}")
        self.tell(f"{self.method.title}: {self.folder.root}   log: {self.folder.log}")


def ranks_at_once() -> float:
    """Return the speed of all ranks of torchrun together in that of one that computes alone on its machine."""
    import torch

    ranks, here = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    room: float = len(os.sched_getaffinity(0)) / torch.get_num_threads()
    return ranks / here * min(here, max(1.0, room))


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
                    say(console, line)

        with poll_in_background(update, POLL_S):
            yield
