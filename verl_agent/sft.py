"""Warm-start a model on an oracle's episodes: `python -m verl_agent.sft --config-dir recipes/<env> --config-name sft`."""

import os
import socket
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf, open_dict
from transformers import AutoConfig

from verl_agent.config.search_path import register_config
from verl_agent.models import resolve_model
from verl_agent.plugin import require_plugin


def run(config: DictConfig) -> None:
    """Train to the end of a composed recipe."""
    OmegaConf.resolve(config)
    with open_dict(config):
        config.trainer.default_local_dir = str(Path(config.trainer.default_local_dir).resolve())
        config.model.path = resolve_model(config.model.path)
        config.data.model_type = AutoConfig.from_pretrained(config.model.path).model_type
    Path(config.trainer.default_local_dir).mkdir(parents=True, exist_ok=True)
    os.environ["VERL_FILE_LOGGER_PATH"] = os.path.join(config.trainer.default_local_dir, "metrics.jsonl")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    single_process()
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


@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config: DictConfig) -> None:
    """Entry point of `python -m verl_agent.sft`."""
    run(config)


if __name__ == "__main__":
    register_config()
    main()
