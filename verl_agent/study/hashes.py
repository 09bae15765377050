"""Hashes of what the result of a study depends on."""

from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path


def source_digest(adapters: Sequence[str]) -> str:
    """Return the hash of the sources of this package and of adapters, given by their modules.

    Those of an adapter are all files of its package, and the modules beside that package, which it may import.
    """
    listed = [(Path(str(import_module("verl_agent").__file__)).parent, "**/*")]
    for module in adapters:
        folder, names = Path(str(import_module(module).__file__)).parent, module.split(".")
        listed += [(folder, "**/*" if len(names) > 1 else Path(f"{names[-1]}.py").name)]
        listed += [(folder.parents[depth], "*") for depth in range(len(names) - 2)]
    paths = sorted({path for folder, glob in listed for path in folder.glob(glob) if path.suffix in (".py", ".yaml")})
    return short_hash(b"".join(path.name.encode() + path.read_bytes() for path in paths))


def short_hash(content: bytes) -> str:
    """Return a short hash."""
    return sha256(content).hexdigest()[:16]
