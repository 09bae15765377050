"""Suite file: the evaluations that one command plays, and their composition as evaluation recipes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from pathlib import Path

from omegaconf import OmegaConf
from pydantic import Field
from pydantic.dataclasses import dataclass

import verl_agent.config
from verl_agent.config.composing import compose_recipe, read_yaml
from verl_agent.config.keys import leaves, value_at
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.evaluation.settings import BASE, EvaluationConfig, UnresolvedError, read_evaluation
from verl_agent.platform.detect import use_cpu_device
from verl_agent.sections import STRICT, section

CONFIG = Path(verl_agent.config.__file__).parent


@dataclass(frozen=True, slots=True, config=STRICT)
class SuiteEntry:
    """One evaluation of a suite."""

    recipe: str
    """Evaluation recipe, relative to the folder of the suite file."""
    categories: Sequence[str]
    """Categories of its tasks that the suite reports, one row each."""
    overrides: Sequence[str] = Field(default_factory=tuple)
    """Settings in place of the recipe's, `KEY=VALUE`."""
    needs: str | None = None
    """Outside data, sites or programs; the evaluation is skipped if its first task cannot be started. Null for an
    evaluation whose failure is an error."""
    substitute: bool = False
    """True for tasks that stand in for others that need outside data; their rows are listed apart and are in no mean.
    """


@plain_dataclass(frozen=True, slots=True)
class Suite:
    """A suite with the overrides of a command line.

    Attributes:
        listed: all evaluations of the file by name.
        entries: evaluations to play by name, a part of `listed`.
    """

    file: Path
    listed: Mapping[str, SuiteEntry]
    entries: Mapping[str, SuiteEntry]
    common: Sequence[str]
    own: Mapping[str, Sequence[str]]

    def recipe(self, name: str) -> Path:
        """Return the recipe of an evaluation."""
        return (self.file.parent / self.entries[name].recipe).resolve()

    def overrides(self, name: str) -> list[str]:
        """Return the overrides of an evaluation; later ones take precedence.

        On a machine without an accelerator these begin with the settings of `cpu_eval.yaml`: those of the engine, and
        the others unless the recipe sets them or the model is behind an API.
        """
        given = [*self.entries[name].overrides, *self.common, *self.own.get(name, ())]
        return [*_cpu_overrides(self.recipe(name), given), *given]


def read_suite(file: Path, overrides: Sequence[str], only: Sequence[str] = ()) -> Suite:
    """Read a suite file.

    Args:
        overrides: `KEY=VALUE` for all evaluations, or `NAME:KEY=VALUE` for one.

    Raises:
        ConfigError: the file is no suite, a recipe does not exist, a name is unknown, or the overrides name a folder.
    """
    content = read_yaml(file, "Give a suite file such as recipes/paper27.yaml.")
    evaluations = content.get("evaluations") if isinstance(content, dict) and len(content) == 1 else None
    if not isinstance(evaluations, dict) or not evaluations:
        raise ConfigError(
            f"{file} is no suite: it must hold the section evaluations and nothing else. Give a suite file such as "
            "recipes/paper27.yaml."
        )
    entries = {
        str(name): section(f"evaluations.{name}", SuiteEntry, value or {}) for name, value in evaluations.items()
    }
    for name in only:
        if name not in entries:
            raise ConfigError(f"--only {name!r} is not an evaluation of {file}. {did_you_mean(name, entries)}")
    common, own = [], dict[str, list[str]]()
    for override in overrides:
        if "evaluation.output_dir=" in override:
            raise ConfigError(
                f"{override!r}: a suite gives each evaluation a folder of its own. Name theirs with --into."
            )
        name, colon, rest = override.partition(":")
        if colon and "=" not in name:
            if name not in entries:
                raise ConfigError(f"{override!r}: {name!r} is not an evaluation. {did_you_mean(name, entries)}")
            own.setdefault(name, []).append(rest)
        else:
            common.append(override)
    chosen = {name: entry for name, entry in entries.items() if not only or name in only}
    suite = Suite(file, entries, chosen, common, own)
    for name, entry in chosen.items():
        if not suite.recipe(name).is_file():
            raise ConfigError(f"evaluations.{name}.recipe={entry.recipe!r} does not exist beside {file}.")
    return suite


def compose_entry(suite: Suite, name: str) -> EvaluationConfig:
    """Return the settings of an evaluation.

    Raises:
        UnresolvedError: a reference does not resolve.
        ConfigError: it does not compose, or a key or a value is not allowed.
    """
    try:
        return read_evaluation(compose_recipe(suite.recipe(name), BASE, suite.overrides(name)))
    except UnresolvedError:
        raise
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def _cpu_overrides(recipe: Path, given: Sequence[str]) -> list[str]:
    if not use_cpu_device():
        return []
    keys = {override.lstrip("+").partition("=")[0] for override in given}
    api = "model.api.kind" in keys or _sets(recipe, "model.api.kind")
    values = OmegaConf.load(CONFIG / "cpu_eval.yaml")
    return [
        f"{key}={value}"
        for key, value in leaves(OmegaConf.to_container(values, resolve=False))
        if key.startswith("engine.") or not (api or _sets(recipe, key))
    ]


def _sets(recipe: Path, key: str) -> bool:
    """Return True if a recipe, or another one beside it or of this package that it builds on, sets a key."""
    values = read_yaml(recipe, "Give a suite whose recipes are YAML files.")
    if not isinstance(values, dict):
        return False
    if value_at(values, key) is not None:
        return True
    named = [one for one in values.get("defaults") or () if isinstance(one, str) and one not in ("_self_", BASE)]
    files = (folder / f"{one.lstrip('/')}.yaml" for one in named for folder in (recipe.parent, CONFIG))
    return any(_sets(file, key) for file in files if file.is_file())
