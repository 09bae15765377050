"""Generator of environment packages: writes a small game that trains, for its author to replace."""

import keyword
import re
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from verl_agent.errors import ConfigError
from verl_agent.system.resources import make_folder

FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
    "@name@/__init__.py": "init.py.txt",
    "@name@/adapter.py": "adapter.py.txt",
    "recipes/grpo.yaml": "grpo.yaml.txt",
    "recipes/grpo_24gb.yaml": "grpo_24gb.yaml.txt",
    "recipes/grpo_cpu.yaml": "grpo_cpu.yaml.txt",
    "recipes/sft_cpu.yaml": "sft_cpu.yaml.txt",
    "recipes/eval.yaml": "eval.yaml.txt",
    "recipes/eval_cpu.yaml": "eval_cpu.yaml.txt",
    "tests/test_@name@.py": "test.py.txt",
}
"""Files of a package, each with its template in `commands/templates/environment`."""
MAX_NAME_CHARS = 30
"""Most characters of a name; a longer one would make lines of the templates too long."""


def write_package(name: str, into: Path) -> Path:
    """Write the package of the environment `name`.

    Returns:
        The folder of the package.

    Raises:
        ConfigError: the name cannot be used, the folder is not empty, or `into` cannot be written.
    """
    check_name(name)
    folder = into / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already. Choose another name, or another folder with --into.")
    make_folder(into, "--into")
    values = {
        "@name@": name,
        "@dist@": f"{name.replace('_', '-')}-env",
        "@Class@": "".join(part.capitalize() for part in name.split("_")),
    }
    templates = files("verl_agent").joinpath("commands", "templates", "environment")
    for path, template in FILES.items():
        target = folder / fill_template(path, values)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(
            fill_template(templates.joinpath(template).read_text(encoding="utf-8"), values), encoding="utf-8"
        )
    return folder


def check_name(name: str) -> None:
    """Check that `name` can name an environment and a Python package.

    Raises:
        ConfigError: the name is not allowed, or something else has it already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name) or len(name) > MAX_NAME_CHARS:
        raise ConfigError(
            f"NAME={name!r} is not allowed as the name of a package. Allowed: lowercase letters, digits and single "
            f"underscores, starting with a letter, at most {MAX_NAME_CHARS} characters."
        )
    from verl_agent.envs.registry import registered_envs

    if name in registered_envs():
        raise ConfigError(f"NAME={name!r} is registered already, by {registered_envs()[name]}. Choose another.")
    if find_spec(name) is not None:
        raise ConfigError(f"NAME={name!r} is a Python module already, which the package would hide. Choose another.")


def fill_template(text: str, values: Mapping[str, str]) -> str:
    """Return a template with its placeholders replaced."""
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text
