"""LoRA adapters (arXiv 2106.09685): their merging into the weights, and a check of those that a run continues.

verl 0.9.1 saves a model with adapters under PEFT's names (utils/checkpoint/fsdp_checkpoint_manager.py), which
`from_pretrained` replaces by random weights with a warning. Its merger writes adapters beside the model.
"""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from verl_agent.envs.machine.locks import locked
from verl_agent.errors import ConfigError
from verl_agent.models.checkpoints import finish_checkpoint
from verl_agent.trace.provenance import read_json

PREFIX: Final = "base_model.model."
META: Final = "lora_train_meta.json"
"""File of verl with rank and alpha, beside the folder of the weights."""
ADAPTER: Final = "lora_adapter"
"""Folder with the adapters that verl's merger writes, inside that of the weights."""
PLAIN: Final = {"peft_type": "LORA", "bias": "none"}
NOT_PLAIN: Final = (
    *("use_rslora", "use_dora", "use_qalora", "rank_pattern", "alpha_pattern", "target_parameters"),
    *("modules_to_save", "trainable_token_indices", "layer_replication", "lora_bias", "alora_invocation_tokens"),
    *("use_bdlora", "velora_config", "monteclora_config"),
)
"""Options of PEFT that plain LoRA has with these values, and those that it lacks or has empty."""


def check_adapters(key: str, model: Mapping[str, Any], *, may_be_random: bool) -> None:
    """Check the adapters with which a model begins: checkpoints keep their rank and alpha alone.

    Args:
        key: dotted key of its section, for messages.
        model: section of the config.
        may_be_random: allow dropout.

    Raises:
        ConfigError: they cannot be read, are no plain LoRA, or have another rank or alpha than the config.
    """
    if (path := model.get("lora_adapter_path")) is None:
        return
    from peft import PeftConfig

    name = f"{key}.lora_adapter_path={path!r}"
    try:
        own = vars(PeftConfig.from_pretrained(path))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{name} does not load: {type(error).__name__} {error}. Name a folder that `save_pretrained` of PEFT "
            "wrote, with adapter_config.json."
        ) from error
    other = [option for option, value in PLAIN.items() if own.get(option, value) != value]
    other += [option for option in (*NOT_PLAIN, *([] if may_be_random else ["lora_dropout"])) if own.get(option)]
    if other:
        given = ", ".join(f"{option}={own[option]!r}" for option in other)
        raise ConfigError(
            f"{name} is not allowed: its adapter_config.json has {given}. Allowed: plain LoRA, which rank and alpha "
            f"describe. Merge the adapters with PEFT (merge_and_unload), and set {key}.path to the result."
        )
    for option, setting in (("r", "lora_rank"), ("lora_alpha", "lora_alpha")):
        if own.get(option) != model.get(setting):
            raise ConfigError(
                f"{key}.{setting}={model.get(setting)!r} is not allowed with {name}, whose adapter_config.json has "
                f"{option}={own.get(option)!r}. Allowed: {own.get(option)!r}, with which the checkpoints are merged."
            )


def has_adapters(folder: Path) -> bool:
    """Return True if a folder of Hugging Face weights holds unmerged adapters; truncated files are skipped."""
    if (folder / ADAPTER).is_dir():
        return True
    for file in _weights(folder):
        with suppress(SafetensorError), safe_open(file, framework="np") as weights:
            if any(".lora_A." in name for name in weights.keys()):  # noqa: SIM118 - not a mapping
                return True
    return False


def finish_merging(folder: Path) -> None:
    """Finish a merge that was killed between its last two renames."""
    draft, old = _beside(folder)
    if not folder.exists() and old.is_dir():
        (draft if draft.is_dir() else old).rename(folder)


def merge_adapters(folder: Path) -> None:
    """Merge the adapters in a folder of Hugging Face weights in place, in the dtype of the weights.

    The merged folder is written beside the old one and then renamed, so that a kill leaves no partial merge;
    `finish_merging` completes the renames. Concurrent calls wait for each other.

    Raises:
        ConfigError: rank and alpha are unknown, a file is truncated, or weights are missing or no plain LoRA.
    """
    folder = folder.resolve()
    try:
        with locked(folder.parent):
            if has_adapters(folder):
                _merge(folder)
    except SafetensorError as error:
        raise ConfigError(f"the weights in {folder} cannot be read: {error}. Choose a complete checkpoint.") from error


def _merge(folder: Path) -> None:
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    (rank, alpha), (draft, old) = _rank_and_alpha(folder), _beside(folder)
    for leftover in (draft, old):
        shutil.rmtree(leftover, ignore_errors=True)
    if (folder / ADAPTER).is_dir():
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), folder / ADAPTER)
    else:
        weights = {name: tensor for file in _weights(folder) for name, tensor in load_file(file).items()}
        targets = sorted({name.split(".lora_A.")[0].removeprefix(PREFIX) for name in weights if ".lora_A." in name})
        with torch.device("meta"):
            plain = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
            model = get_peft_model(plain, LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets))
        if unknown := model.load_state_dict(weights, strict=False, assign=True).unexpected_keys:
            raise ConfigError(
                f"the weights in {folder} have {len(unknown)} tensors that plain LoRA does not have (for example, "
                f"{unknown[0]}). Merge them with PEFT, and use the result."
            )
        plain.tie_weights()
        if absent := [name for name, tensor in model.named_parameters() if tensor.is_meta]:
            raise ConfigError(
                f"the weights in {folder} lack {len(absent)} parameters of the model (for example, {absent[0]}). "
                "Choose a complete checkpoint."
            )
    model.merge_and_unload().save_pretrained(draft)
    beside = shutil.ignore_patterns("*.safetensors", "*.safetensors.index.json", ADAPTER)
    shutil.copytree(folder, draft, ignore=beside, dirs_exist_ok=True)
    finish_checkpoint(draft)
    folder.rename(old)
    draft.rename(folder)
    shutil.rmtree(old)


def _beside(folder: Path) -> tuple[Path, Path]:
    """Return the temporary folders of the merged and of the old weights."""
    return folder.with_name(f".{folder.name}.merged"), folder.with_name(f".{folder.name}.adapters")


def _weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _rank_and_alpha(folder: Path) -> tuple[int, int]:
    for note in (folder / ADAPTER / "adapter_config.json", folder.parent / META):
        if note.is_file():
            values = read_json(note, "Choose another checkpoint.")
            if values.get("r") and values.get("lora_alpha"):
                return int(values["r"]), int(values["lora_alpha"])
    raise ConfigError(
        f"the weights in {folder} have LoRA adapters, and neither {folder.parent / META} nor "
        f"{ADAPTER}/adapter_config.json has their rank and alpha. Merge them with PEFT, and use the result."
    )
