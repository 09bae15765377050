"""Checkpoints of a run: folders `global_step_<n>`, each with a manifest that is written last.

The manifest lists every file with its size and hash, which cost about 0.2 seconds per GB besides the reading. A folder
of weights that is written later (merged adapters, an export, a prepared model) has a manifest of its own, which
counts instead. verl names the last checkpoint in a tracker file, which it also writes for a checkpoint that is damaged
later, and not at all for some settings.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import xxhash

from verl_agent.models.portable import make_portable

MANIFEST, DRAFT = "manifest.json", ".manifest.json.tmp"
TRACKER = "latest_checkpointed_iteration.txt"
"""File of verl in the folder of a run with the step of the last checkpoint."""
HUGGINGFACE = "huggingface"
"""Folder of a checkpoint with weights in the format of Hugging Face."""
HASH: Final = "xxh3_128"
"""Hash of the files in a manifest. An entry without a hash is compared by its size only."""
READ_BYTES: Final = 2**22
"""Bytes of a file that are read at a time."""
UNFINISHED = "its writing did not end"
_MOST_DIGITS = 18
"""Most digits of a step; Python does not read a number of 5,000."""


def checkpoints(run: Path) -> dict[int, Path]:
    """Return the folders `global_step_<n>` of a run by step, the earliest first."""
    steps = {int(number): folder for folder in run.glob("global_step_*") if _is_step(number := folder.name[12:])}
    return dict(sorted(steps.items()))


def _is_step(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def begin_checkpoint(folder: Path) -> None:
    """Create the folder of a checkpoint, with a manifest that says that its writing has not ended."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, None)


def finish_checkpoint(folder: Path) -> None:
    """Write the manifest of a checkpoint whose other files are complete, after `make_portable` for its model folders.

    Raises:
        ConfigError: see `make_portable`.
    """
    for earlier in folder.rglob(MANIFEST):
        earlier.unlink()  # of a folder of weights inside, if the step is saved again
    for config in sorted(folder.rglob("config.json")):
        make_portable(config.parent)
    write_manifest(folder)


def write_manifest(folder: Path, known: Mapping[str, list[Any]] | None = None) -> None:
    """Write the manifest of a folder; `known` entries are used as they are, and files without one are read."""
    known = known or {}
    _write(folder, {name: known.get(name) or _describe(folder / name) for name in _files(folder)})


def manifest_entries(folder: Path) -> dict[str, list[Any]]:
    """Return size and hash of each file by its path in the folder; empty without a readable manifest."""
    manifest = _read(folder)
    entries: dict[str, list[Any]] = dict(manifest.get("files") or {})
    own = {inside for name in entries for inside in _parents(name) if (folder / inside / MANIFEST).is_file()}
    for inside in own:
        entries = {name: entry for name, entry in entries.items() if not name.startswith(f"{inside}/")}
        entries |= {f"{inside}/{name}": entry for name, entry in manifest_entries(folder / inside).items()}
    return entries


def _parents(name: str) -> list[str]:
    return [parent.as_posix() for parent in Path(name).parents][:-1]


def has_manifest(folder: Path) -> bool:
    """Return True if a folder has a manifest of this project, or a damaged one.

    Other programs also have files of this name; these are JSON.
    """
    is_checkpoint = folder.name.startswith("global_step_") and (folder / MANIFEST).is_file()
    if is_checkpoint:
        return True
    try:
        value = json.loads((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    except (OSError, ValueError):
        return True
    parts = [value, *value.values()] if isinstance(value, dict) else []
    entries = (entry for part in parts if isinstance(part, dict) for entry in part.values())
    return any(entry == HASH or _is_entry(entry) for entry in entries)


def is_complete(folder: Path) -> bool:
    """Return True if the writing of a checkpoint has ended; its files are not read."""
    return _read(folder).get("files") is not None


def size_bytes(folder: Path) -> int:
    """Return the bytes of a complete checkpoint."""
    return sum(int(size) for size, _ in _read(folder)["files"].values())


def find_damage(folder: Path, inside: str = "", contents: bool = True) -> str:
    """Compare a checkpoint, or another folder with a manifest, with its manifest.

    Args:
        inside: folder in the checkpoint to which the comparison is limited.
        contents: False to compare the sizes of the files only, without reading them.

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
    for name, (size, digest) in manifest_entries(folder).items():
        file = folder / name
        if not name.startswith(inside):
            continue
        if not file.is_file():
            return f"{name} is missing"
        if (now := file.stat().st_size) != size:
            return f"{name} has {now:,} bytes instead of {size:,}"
        if contents and digest is not None and hash_file(file) != digest:
            return f"{name} has changed since it was written"
    return ""


def tracked_step(run: Path) -> int | None:
    """Return the step that verl's tracker file names; None if the file is missing or has no number."""
    tracker = run / TRACKER
    text = tracker.read_text(encoding="utf-8", errors="replace").strip() if tracker.is_file() else ""
    return int(text) if _is_step(text) else None


def saved_step(run: Path) -> int:
    """Return the step of the complete checkpoint that the tracker names, else of the last one before; 0 without any.

    verl writes the tracker before the manifest is complete.
    """
    tracked = tracked_step(run)
    steps = [step for step, folder in checkpoints(run).items() if is_complete(folder)]
    return max((step for step in steps if tracked is None or step <= tracked), default=0)


def latest_checkpoint(run: Path) -> Path | None:
    """Return the checkpoint of `saved_step`; of a run without manifests, that of the tracker or of the highest step."""
    found = {
        step: folder for step, folder in checkpoints(run).items() if find_damage(folder, contents=False) != UNFINISHED
    }
    step = saved_step(run) or tracked_step(run)
    return found.get(step or 0) or (found[max(found)] if found else None)


def _files(folder: Path) -> Iterator[str]:
    """Yield the files of a folder by their paths, without manifests."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name not in (MANIFEST, DRAFT):
            yield file.relative_to(folder).as_posix()


def _describe(file: Path) -> list[Any]:
    return [file.stat().st_size, hash_file(file)]


def hash_file(file: Path) -> str:
    """Return the hash of a file's bytes."""
    digest, block = xxhash.xxh3_128(), memoryview(bytearray(READ_BYTES))
    with file.open("rb", buffering=0) as stream:
        while count := stream.readinto(block):
            digest.update(block[:count])
    return digest.hexdigest()


def _write(folder: Path, files: dict[str, list[Any]] | None) -> None:
    draft = folder / DRAFT
    draft.write_text(json.dumps({"hash": HASH, "files": files}, indent=1) + "\n", encoding="utf-8")
    draft.replace(folder / MANIFEST)


def _read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint; empty without a readable one."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) and _are_files(manifest.get("files", 0), manifest.get("hash")) else {}


def _are_files(files: object, kind: object) -> bool:
    """Return True if the entries of a manifest are sizes and hashes of its kind; None stands for an unfinished one."""
    if not isinstance(files, dict):
        return files is None
    return all(_is_entry(entry) and (entry[1] is None or kind == HASH) for entry in files.values())


def _is_entry(entry: object) -> bool:
    """Return True for the size and the hash of a file; None stands for a file without a hash."""
    if not isinstance(entry, list) or len(entry) != 2:
        return False
    return type(entry[0]) is int and isinstance(entry[1], str | None)
