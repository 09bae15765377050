"""Installation of the sites: a virtual environment, Fossil, and the initial state of copies."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from env_adapters.web_sites.folders import HERE, Home
from verl_agent.envs.base import Requirement
from verl_agent.envs.machine.proxies import child_environment
from verl_agent.errors import ConfigError

REQUIREMENTS = HERE / "requirements.txt"
ROOT = HERE.parents[1]
"""Folder that contains the package `env_adapters`."""
STAMP = ".verl-agent-sites"
FOSSIL_PACKAGES = ("fossil", "libfuse2")
GET_FOSSIL = "apt-get install fossil"
SEEDERS = ("shop_seed", "forum_seed", "code_seed")

Say = Callable[[str], None]


def install_sites(home: Home, seed: int, say: Say) -> None:
    """Install whatever is missing.

    Raises:
        ConfigError: a download or a command fails.
    """
    home.folder.mkdir(parents=True, exist_ok=True)
    for folder in (home.copies, home.logs):
        folder.mkdir(exist_ok=True)
    make_venv(home.venv, say)
    fossil_program(home, say)
    make_seed(home, seed, say)


def make_venv(folder: Path, say: Say) -> None:
    """Create the virtual environment of the sites, which is separate from that of the training."""
    contents, stamp = f"{REQUIREMENTS.read_text(encoding='utf-8')}\n{ROOT}\n", folder / STAMP
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == contents:
        return
    say(f"new virtual environment {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    python = str(folder / "bin" / "python")
    output_of([sys.executable, "-m", "venv", str(folder)])
    say("installing django-oscar, django-spirit and gunicorn into it")
    output_of([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(REQUIREMENTS)])
    packages = output_of([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    # A .pth file puts ROOT after the environment's own packages, so other packages in ROOT cannot shadow them.
    Path(packages, "verl_agent_sites.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    stamp.write_text(contents, encoding="utf-8")


def fossil_program(home: Home, say: Say = lambda line: None) -> str:
    """Return the path of Fossil; if it is not installed, download and unpack Debian's package."""
    installed = shutil.which("fossil")
    if installed:
        return installed
    program = home.fossil / "fossil"
    if program.is_file():
        return str(program)
    if not all(shutil.which(tool) for tool in ("apt-get", "dpkg-deb")):
        raise ConfigError(f"The code host needs the program `fossil`. Install it: {GET_FOSSIL}")
    say("fetching fossil from Debian")
    shutil.rmtree(home.fossil, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=home.folder) as temporary:
        try:
            output_of(["apt-get", "download", *FOSSIL_PACKAGES], cwd=temporary)
            for package in sorted(Path(temporary).glob("*.deb")):
                output_of(["dpkg-deb", "-x", str(package), temporary])
                package.unlink()
            wrapper = Path(temporary, "fossil")
            libraries = sorted({str(file.parent.relative_to(temporary)) for file in Path(temporary).rglob("lib*.so*")})
            paths = ":".join(str(home.fossil / library) for library in libraries)
            wrapper.write_text(
                f'#!/bin/sh\nLD_LIBRARY_PATH="{paths}" exec "{home.fossil / "usr/bin/fossil"}" "$@"\n', encoding="utf-8"
            )
            wrapper.chmod(0o755)
        except ConfigError as error:
            raise ConfigError(f"The code host needs the program `fossil`. Install it: {GET_FOSSIL}\n{error}") from error
        shutil.copytree(temporary, home.fossil, symlinks=True)
    return str(program)


def environment(home: Home, seed: Path) -> dict[str, str]:
    """Return the environment variables of the sites' processes."""
    return {
        **_inherited(),
        "PYTHONDONTWRITEBYTECODE": "",
        "SITES_COPIES_FOLDER": str(home.copies),
        "SITES_FOSSIL": fossil_program(home),
        "SITES_SEED_FOLDER": str(seed),
    }


def make_seed(home: Home, seed: int, say: Say) -> None:
    """Create the initial state that all copies start from, in a folder that appears when it is complete.

    The sites are filled in parallel.
    """
    target = home.seed(seed)
    if target.is_dir():
        return
    say(f"filling the sites with the generated data of seed {seed}")
    new = home.folder / f".{target.name}.{os.getpid()}"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    variables = environment(home, new)
    python = str(home.venv / "bin" / "python")
    started = [
        subprocess.Popen(
            [python, "-m", f"env_adapters.web_sites.served.{name}", str(seed)],
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in SEEDERS
    ]
    outputs = [process.communicate()[1] for process in started]
    for name, process, output in zip(SEEDERS, started, outputs, strict=True):
        if process.returncode:
            shutil.rmtree(new)
            raise ConfigError(f"{name} failed:\n{output.strip()[-2000:]}")
    try:
        new.rename(target)
    except OSError:  # another process has created it
        shutil.rmtree(new)
    for old in home.folder.glob("seed-*"):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)


def output_of(command: Sequence[str], cwd: str | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output."""
    try:
        done = subprocess.run(
            command, cwd=cwd, env={**_inherited(), **(env or {})}, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise ConfigError(f"`{command[0]}` cannot be run: {error}") from error
    if done.returncode:
        raise ConfigError(f"`{' '.join(command)}` failed:\n{(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def _inherited() -> dict[str, str]:
    """Return the variables that the sites' programs take over from this process."""
    variables = child_environment(os.environ)
    return {name: value for name, value in variables.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def fossil_requirements() -> list[Requirement]:
    """Return the program of the embedded code site."""
    fossil = shutil.which("fossil")
    found = fossil or "server of the embedded code site; `verl-agent sites up` downloads it on machines with apt"
    return [Requirement("fossil", fossil is not None, GET_FOSSIL, found)]
