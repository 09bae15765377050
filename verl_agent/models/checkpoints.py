"""Checkpoints of a run: folders `global_step_<n>`, each with a manifest that is written last.

The manifest lists every file with its size, and small files with a hash. verl names the last checkpoint in a tracker
file, which it also writes for a checkpoint that is damaged later, and not at all for some settings.
"""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from verl_agent.models.lora import META

MANIFEST, DRAFT = "manifest.json", ".manifest.json.tmp"
TRACKER = "latest_checkpointed_iteration.txt"
"""File of verl in the folder of a run with the step of the last checkpoint."""
HUGGINGFACE = "huggingface"
"""Folder of a checkpoint with weights in the format of Hugging Face."""
HASHED_BYTES = 2**20
"""Size of the largest file that is compared by its hash; larger ones are compared by their size."""
UNFINISHED = "its writing did not end"


def checkpoints(run: Path) -> dict[int, Path]:
    """Return the folders `global_step_<n>` of a run by step, the earliest first."""
    steps = {int(number): folder for folder in run.glob("global_step_*") if (number := folder.name[12:]).isdecimal()}
    return dict(sorted(steps.items()))


def begin_checkpoint(folder: Path) -> None:
    """Create the folder of a checkpoint, with a manifest that says that its writing has not ended."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, None)


def finish_checkpoint(folder: Path) -> None:
    """Write the manifest of a checkpoint whose other files are complete."""
    _write(folder, {name: _describe(folder / name) for name in _files(folder)})


def is_complete(folder: Path) -> bool:
    """Return True if the writing of a checkpoint has ended; its files are not read."""
    return _read(folder).get("files") is not None


def size_bytes(folder: Path) -> int:
    """Return the bytes of a complete checkpoint."""
    return sum(int(size) for size, _ in _read(folder)["files"].values())


def find_damage(folder: Path, inside: str = "") -> str:
    """Compare a checkpoint with its manifest.

    Args:
        inside: folder in the checkpoint to which the comparison is limited.

    Returns:
        First difference, which names the file; `UNFINISHED`; or "" if the checkpoint is whole.
    """
    if not folder.is_dir():
        return "the folder is missing"
    manifest = _read(folder)
    if not manifest:
        return f"it has no readable {MANIFEST}"
    if manifest["files"] is None:
        return UNFINISHED
    for name, (size, digest) in manifest["files"].items():
        file = folder / name
        if not name.startswith(inside):
            continue
        if not file.is_file():
            return f"{name} is missing"
        if (now := file.stat().st_size) != size:
            return f"{name} has {now:,} bytes instead of {size:,}"
        if digest is not None and _describe(file)[1] != digest:
            return f"{name} has changed since it was written"
    return ""


def tracked_step(run: Path) -> int | None:
    """Return the step that verl's tracker file names; None if the file is missing or has no number."""
    tracker = run / TRACKER
    text = tracker.read_text(encoding="utf-8", errors="replace").strip() if tracker.is_file() else ""
    return int(text) if text.isdecimal() else None


def saved_step(run: Path) -> int:
    """Return the step of the complete checkpoint that the tracker names, else of the last one before; 0 without any.

    verl writes the tracker before the manifest is complete.
    """
    tracked = tracked_step(run)
    steps = [step for step, folder in checkpoints(run).items() if is_complete(folder)]
    return max((step for step in steps if tracked is None or step <= tracked), default=0)


def latest_checkpoint(run: Path) -> Path | None:
    """Return the checkpoint of `saved_step`; of a run without manifests, that of the tracker or of the highest step."""
    found = {step: folder for step, folder in checkpoints(run).items() if find_damage(folder) != UNFINISHED}
    step = saved_step(run) or tracked_step(run)
    return found.get(step or 0) or (found[max(found)] if found else None)


def _files(folder: Path) -> Iterator[str]:
    """Yield the files that a checkpoint needs, without weights whose LoRA adapters a reader merges in place."""
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        merged = HUGGINGFACE in parts and folder.joinpath(*parts[: parts.index(HUGGINGFACE)], META).is_file()
        if file.is_file() and not merged and file.name not in (MANIFEST, DRAFT):
            yield "/".join(parts)


def _describe(file: Path) -> list[Any]:
    size = file.stat().st_size
    return [size, sha256(file.read_bytes()).hexdigest() if size <= HASHED_BYTES else None]


def _write(folder: Path, files: dict[str, list[Any]] | None) -> None:
    draft = folder / DRAFT
    draft.write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")
    draft.replace(folder / MANIFEST)


def _read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint; empty without a readable one."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) and "files" in manifest else {}
