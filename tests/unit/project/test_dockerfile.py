"""Test the Dockerfile without Docker: an image for each engine, and an installation from the files that it copies."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests import ROOT

TEXT = (ROOT / "requirements" / "Dockerfile").read_text(encoding="utf-8")


def test_there_is_an_image_for_the_cpu_and_for_each_engine_of_gpus():
    locks = {path.stem.removeprefix("gpu-") for path in (ROOT / "requirements").glob("gpu-*.txt")}
    engines = {name for name in locks if not name.endswith("-nodeps")}
    named = {*re.findall(r"^ARG ENGINE=(\w+)|ENGINE=(\w+)", TEXT, re.MULTILINE)}
    assert {name for pair in named for name in pair if name} == engines
    assert "ARG DEVICE=cpu" in TEXT


def test_the_copied_files_make_a_wheel_with_recipes_and_locks(tmp_path: Path):
    source = tmp_path / "image"
    for line in re.findall(r"^COPY (.+)$", TEXT, re.MULTILINE):
        *names, target = line.split()
        for name in names:
            to = source / (name if target == "./" else target)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, to)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path]
    subprocess.run([*build, source], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for needed in ("recipes/textcraft/grpo.yaml", "templates/launch/slurm.sh.txt", "requirements/cpu.txt"):
        assert [name for name in names if name.endswith(needed)], needed
