"""Warm-start a model on an oracle's episodes: `python -m verl_agent.sft --config-dir DIR --config-name RECIPE`."""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from verl_agent.agents.base import Agent
from verl_agent.agents.registry import new_agent
from verl_agent.config.keys import check_keys, check_kind
from verl_agent.config.schema import AgentSection, section
from verl_agent.envs.registry import load_adapter, new_session
from verl_agent.envs.tasks import check_disjoint, draw, select_tasks
from verl_agent.errors import ConfigError
from verl_agent.launch import launch
from verl_agent.machine import (
    SFT_BYTES,
    SFT_MEMORY_GB,
    check_disk,
    check_memory,
    disk_needed,
    memory_needed,
    read_memory,
)
from verl_agent.model_config import load_config
from verl_agent.models import parameters, resolve_model
from verl_agent.platform.detect import use_cpu_device
from verl_agent.rollout.oracle import moves_of
from verl_agent.run_folder import SFT_IDENTITY, RunFolder, identity
from verl_agent.terminal import exit_with, explaining, quiet, repeating
from verl_agent.trace.metrics_log import MetricsTail

POLL_S = 0.5


def run(config: DictConfig) -> None:
    """Train to the end of a composed recipe, or go on from its last checkpoint.

    Raises:
        ConfigError: the run must not start.
    """
    check_kind(config, "agent_sft")
    try:
        OmegaConf.resolve(config)
        folder = RunFolder.at(config.trainer.default_local_dir)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the config does not resolve: {error}") from error
    with quiet(folder.log) as console:
        if missing := OmegaConf.missing_keys(config):
            raise ConfigError(f"the config lacks a value for {', '.join(sorted(missing))}.")
        check_keys(config, "agent_sft")
        as_written = OmegaConf.select(config, "model.path")
        prepare(config, folder)
        written = OmegaConf.create(OmegaConf.to_container(config))
        written.model.path = as_written
        steps, resume = total_steps(config), config.trainer.resume_mode != "disable"
        tasks = select_tasks(config.env.name, config.env.train_tasks, env_options(config))
        folder.check_identity(identity(OmegaConf.to_container(written), SFT_IDENTITY, tasks), resume)
        if resume and folder.last_step >= steps:
            console.print(f"All {steps} steps are done already: {folder.root}")
            return
        with explaining(folder, console), showing(folder, steps, console):
            train(config, folder)
        console.print(f"warm start: {folder.root}   log: {folder.log}", soft_wrap=True)


def prepare(config: DictConfig, folder: RunFolder) -> None:
    """Check the config and fill in what only this machine knows.

    Raises:
        ConfigError: see `run`.
    """
    env, options = config.env, env_options(config)
    new_session(env.name, options)
    agent_of(config)
    tasks = select_tasks(env.name, env.train_tasks, options)
    check_disjoint(env.name, env.train_tasks, env.eval_tasks, options)
    if len(tasks) < config.data.train_batch_size:
        raise ConfigError(
            f"env.train_tasks={config.env.train_tasks!r} has {len(tasks)} tasks, fewer than "
            f"data.train_batch_size={config.data.train_batch_size}."
        )
    with open_dict(config):
        config.trainer.default_local_dir = str(folder.root)
        config.model.path = resolve_model(config.model.path, key="model.path")
        config.data.model_type = load_config(config.model.path, "model.path").model_type
    count = parameters(config.model.path)
    if use_cpu_device():
        check_memory(read_memory(), memory_needed(count, SFT_MEMORY_GB, SFT_BYTES))
    needed_gb = disk_needed(count, list(config.checkpoint.save_contents), config.trainer.max_ckpt_to_keep)
    check_disk(shutil.disk_usage(folder.root).free, needed_gb, folder.root)


def agent_of(config: DictConfig) -> Agent:
    """An agent as demonstrations have it.

    Raises:
        ConfigError: there is no such one, or it refuses its options or its context.
    """
    chosen: Any = OmegaConf.to_container(config.agent)
    words = section("agent", AgentSection, chosen)
    form = load_adapter(config.env.name, env_options(config)).form
    return new_agent(words.name, words.options, words.context, form)


def env_options(config: DictConfig) -> dict[str, Any]:
    """Keyword arguments of the adapter."""
    return {str(key): value for key, value in OmegaConf.to_object(config.env.options).items()}


def total_steps(config: DictConfig) -> int:
    """Optimizer steps of the whole run."""
    if config.trainer.total_training_steps is not None:
        return int(config.trainer.total_training_steps)
    options, most = env_options(config), int(config.data.train_max_samples)
    listed = select_tasks(config.env.name, config.env.train_tasks, options)
    tasks = draw(listed, most) if most > 0 else listed
    agent, rows = agent_of(config), len(tasks)
    if agent.context.edits:
        session = new_session(config.env.name, options)
        rows = sum(agent.context.stretches(len(moves_of(session, item))) for item in tasks)
    return rows // int(config.data.train_batch_size) * int(config.trainer.total_epochs)


def train(config: DictConfig, folder: RunFolder) -> None:
    """Hand the config to verl's SFT trainer, in this process."""
    folder.metrics.parent.mkdir(parents=True, exist_ok=True)
    os.environ["VERL_FILE_LOGGER_PATH"] = str(folder.metrics)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    single_process()
    from verl_agent.plugin import require_plugin  # importing it imports verl

    require_plugin()
    from verl.trainer.sft_trainer import run_sft

    run_sft(config)


def single_process() -> None:
    """Be a process group of one, unless torchrun started this process."""
    if "RANK" in os.environ:
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


@contextmanager
def showing(folder: RunFolder, steps: int, console: Console) -> Iterator[None]:
    """A progress bar with the loss, while the block runs."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    tail = MetricsTail(folder.metrics)
    hidden = os.environ.get("RANK", "0") != "0"
    with Progress(*columns, console=console, disable=hidden, redirect_stdout=False, redirect_stderr=False) as progress:
        bar = progress.add_task("warm start", total=steps, completed=folder.last_step, loss="loading the model")

        def follow() -> None:
            for logged in tail.read():
                progress.update(bar, completed=logged.step, loss=f"loss {logged.values.get('train/loss', 0.0):.3f}")

        with repeating(follow, POLL_S):
            yield


@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config: DictConfig) -> None:
    """Entry point of `python -m verl_agent.sft`."""
    exit_with(run, config)


if __name__ == "__main__":
    launch(main)
