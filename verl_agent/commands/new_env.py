"""Write an environment as a package of its own: a small game that trains, for its author to replace."""

import keyword
import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from verl_agent.envs.registry import registered
from verl_agent.errors import ConfigError

FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
    "@name@/__init__.py": "init.py.txt",
    "@name@/adapter.py": "adapter.py.txt",
    "recipes/grpo.yaml": "grpo.yaml.txt",
    "recipes/grpo_cpu.yaml": "grpo_cpu.yaml.txt",
    "recipes/sft_cpu.yaml": "sft_cpu.yaml.txt",
    "recipes/eval.yaml": "eval.yaml.txt",
    "recipes/eval_cpu.yaml": "eval_cpu.yaml.txt",
    "tests/test_@name@.py": "test.py.txt",
}
"""Files of a package, and the templates in `commands/templates/environment` that they are made of."""
LONGEST = 30
"""Characters of a name; with more, lines of the templates would be too long."""


def write_package(name: str, into: Path) -> Path:
    """Write the package of the environment `name`.

    Args:
        name: of the environment and of its Python package.
        into: folder in which its folder is made.

    Returns:
        The folder of the package.

    Raises:
        ConfigError: the name cannot be used, or the folder holds something already.
    """
    check_name(name)
    folder = into / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already. Choose another name, or another folder with --into.")
    words = {
        "@name@": name,
        "@dist@": f"{name.replace('_', '-')}-env",
        "@Class@": "".join(part.capitalize() for part in name.split("_")),
    }
    templates = files("verl_agent").joinpath("commands", "templates", "environment")
    for path, template in FILES.items():
        target = folder / filled(path, words)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(filled(templates.joinpath(template).read_text(encoding="utf-8"), words), encoding="utf-8")
    return folder


def check_name(name: str) -> None:
    """The name can be one of an environment and of a Python package.

    Raises:
        ConfigError: it cannot.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name) or len(name) > LONGEST:
        raise ConfigError(
            f"NAME={name!r} cannot be the name of a package. Allowed: small letters, digits and single underscores, "
            f"a letter first, at most {LONGEST}."
        )
    if name in registered():
        raise ConfigError(f"NAME={name!r} is registered already, by {registered()[name]}. Choose another.")
    if find_spec(name) is not None:
        raise ConfigError(f"NAME={name!r} is a Python module already, which the package would hide. Choose another.")


def filled(text: str, words: dict[str, str]) -> str:
    """A template with its words put in."""
    for mark, word in words.items():
        text = text.replace(mark, word)
    return text
