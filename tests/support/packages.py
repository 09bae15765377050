"""Packages that are installed as far as entry points go: their metadata lies in a folder of the path."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from tests import ROOT


def install_example(name: str, folder: Path) -> list[Path]:
    """Write the metadata of a package of `examples/`, as `pip install -e` does, and return the folders of its path."""
    project = tomllib.loads((ROOT / "examples" / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    write_metadata(folder, project["name"], project["entry-points"])
    return [folder, ROOT / "examples" / name]


def write_metadata(folder: Path, package: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Write the metadata of an installed package with entry points, by group and name."""
    metadata = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    metadata.joinpath("entry_points.txt").write_text("\n".join(lines))
