"""Add LoRA adapters (arXiv 2106.09685) to the weights that they were trained on, so that every reader finds a model.

verl 0.9.1 saves a model with adapters under PEFT's names (utils/checkpoint/fsdp_checkpoint_manager.py), which
`from_pretrained` answers with new random weights and a warning; its merger writes adapters beside the model.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from verl_agent.errors import ConfigError

PREFIX: Final = "base_model.model."
BASE: Final = ".base_layer."
DOWN: Final = (".lora_A.default.weight", ".lora_A.weight")
META: Final = "lora_train_meta.json"
"""verl's note of rank and alpha, beside the folder of the weights."""
ADAPTER: Final = "lora_adapter"
"""Folder in which verl's merger leaves adapters, inside that of the weights."""
INDEX: Final = "model.safetensors.index.json"


def has_adapters(folder: Path) -> bool:
    """Whether a folder of Hugging Face weights holds adapters that no reader would add; not where it is cut off."""
    if (folder / ADAPTER).is_dir():
        return True
    for file in _weights(folder):
        with suppress(SafetensorError):
            if any(".lora_A." in name for name in _places([file])):
                return True
    return False


def finish_merging(folder: Path) -> None:
    """Put a folder in its place whose merging was killed between the last two steps."""
    draft, old = _beside(folder)
    if not folder.exists() and old.is_dir():
        (draft if draft.is_dir() else old).rename(folder)


def merge_adapters(folder: Path) -> None:
    """Add the adapters in a folder of Hugging Face weights: W + alpha / rank · B A, in place, in the weights' type.

    The folder is written beside and then exchanged: no kill leaves one that is merged in part, and `finish_merging`
    mends what it leaves. Processes wait for each other; the second finds nothing to do.

    Raises:
        ConfigError: nothing says by how much they count, or a file is cut off.
    """
    folder = folder.resolve()
    parent = os.open(folder.parent, os.O_RDONLY)
    try:
        fcntl.flock(parent, fcntl.LOCK_EX)
        if has_adapters(folder):
            _merge(folder)
    except SafetensorError as error:
        raise ConfigError(f"the weights in {folder} cannot be read: {error}. Were they saved to the end?") from error
    finally:
        os.close(parent)


def _merge(folder: Path) -> None:
    from safetensors.torch import save_file  # imports torch

    files, scale = _weights(folder), _scale(folder)
    where = _places([*files, *_weights(folder / ADAPTER)])
    draft, old = _beside(folder)
    for left_over in (draft, old):
        shutil.rmtree(left_over, ignore_errors=True)
    shutil.copytree(folder, draft, ignore=shutil.ignore_patterns("*.safetensors", ADAPTER))
    for file in files:
        save_file(dict(_merged(file, where, scale)), draft / file.name, metadata={"format": "pt"})
    _rename_index(draft)
    folder.rename(old)
    draft.rename(folder)
    shutil.rmtree(old)


def _beside(folder: Path) -> tuple[Path, Path]:
    """Where the merged weights are written, and where those from before wait for them."""
    return folder.with_name(f".{folder.name}.merged"), folder.with_name(f".{folder.name}.adapters")


def _weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _places(files: list[Path]) -> dict[str, Path]:
    """Which file each tensor lies in."""
    found: dict[str, Path] = {}
    for file in files:
        with safe_open(file, framework="np") as weights:
            found |= dict.fromkeys(weights.keys(), file)
    return found


def _scale(folder: Path) -> float:
    for note in (folder / ADAPTER / "adapter_config.json", folder.parent / META):
        if note.is_file():
            said = json.loads(note.read_text(encoding="utf-8"))
            if said.get("r") and said.get("lora_alpha"):
                return float(said["lora_alpha"]) / float(said["r"])
    raise ConfigError(
        f"the weights in {folder} have LoRA adapters, and neither {folder.parent / META} nor "
        f"{ADAPTER}/adapter_config.json says their rank and alpha. Merge them with PEFT, and name the result."
    )


def _plain(name: str) -> str:
    """A tensor's name without PEFT."""
    return name.removeprefix(PREFIX).replace(BASE, ".")


def _merged(file: Path, where: dict[str, Path], scale: float) -> Iterator[tuple[str, Any]]:
    """The tensors of a file under their plain names, adapters added."""
    down = {_plain(name).removesuffix(end): name for name in where for end in DOWN if name.endswith(end)}
    for name in (name for name, place in where.items() if place == file and ".lora_" not in name):
        weight, plain = _read(file, name), _plain(name)
        adapter = down.get(plain.removesuffix(".weight")) if plain.endswith(".weight") else None
        if adapter is not None:
            first, second = (_read(where[each], each) for each in (adapter, adapter.replace(".lora_A.", ".lora_B.")))
            weight = (weight.float() + scale * (second.float() @ first.float())).to(weight.dtype)
        yield plain, weight


def _read(file: Path, name: str) -> Any:
    with safe_open(file, framework="pt") as weights:
        return weights.get_tensor(name)


def _rename_index(folder: Path) -> None:
    """Let the index of several files name what they hold now."""
    index = folder / INDEX
    if index.is_file():
        said = json.loads(index.read_text(encoding="utf-8"))
        said["weight_map"] = {name: place.name for name, place in _places(_weights(folder)).items()}
        index.write_text(json.dumps(said, indent=2, sort_keys=True) + "\n", encoding="utf-8")
