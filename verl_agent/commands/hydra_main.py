"""Start of a command through Hydra; a recipe or command line that does not compose is explained in one message.

The steps of `verl-agent train RECIPE KEY=VALUE` to the first line of the training:

1. `commands/cli.py` says what follows, and replaces its process by `python -m verl_agent.commands.train`, because
   Hydra reads the command line of its process. Torchrun, a cluster's scheduler and AgentEvol start the same modules,
   without step 1.
2. `run_recipe` lets Hydra compose recipe and overrides. It explains what does not compose, in a block of its own since
   Hydra would print its errors.
3. `exiting` encloses all that follows. It turns errors of this package into a message and an exit status, in the parent
   and in the child of step 5.
4. `RunPlan.read` reads the config once; below this line nothing knows Hydra or OmegaConf.
5. `supervise` forks, in training only: the parent imports neither torch nor Ray, so it survives what kills the child,
   and can start the run again. The child returns from it and runs the job.
"""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from verl_agent.config.checks import check_keys
from verl_agent.config.composing import check_overlays
from verl_agent.config.explanation import explain_failure
from verl_agent.config.keys import add_free_keys, expand_home
from verl_agent.config.search_path import register_config, verl_config
from verl_agent.errors import ConfigError
from verl_agent.platform.worker_environment import set_thread_waiting
from verl_agent.runs.console import exiting
from verl_agent.terminal import guard_output, say_error

RAY_VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars"
"""Key of the variables that a recipe gives to the workers of Ray."""


def run_recipe(run: Callable[[DictConfig], None], base: str) -> None:
    """Run an entry point on the config that Hydra composes; exit with code 2 if recipe and overrides do not compose."""

    def task(config: DictConfig) -> None:
        with exiting():
            check_keys(config, base)
            set_thread_waiting(_ray_variables(config))  # before the import of torch
            expand_home(config)
            run(config)

    guard_output()
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # makes Hydra raise its errors instead of printing them
    try:
        register_config()
        if base != "agent_eval":
            verl_config()
        check_overlays(sys.argv)
        _accept_lazy_help()
        _check_options(sys.argv[1:])
        sys.argv[1:] = [add_free_keys(argument) for argument in sys.argv[1:]]
        hydra.main(version_base=None, config_path=None, config_name=None)(task)()
    except (HydraException, YAMLError, ConfigError, ValueError) as error:
        message = explain_failure(error, sys.argv, base)
        if message is None:
            raise
        say_error(message)
        sys.exit(2)


def _ray_variables(config: DictConfig) -> Mapping[str, object]:
    """Return the variables that a recipe gives to the workers of Ray; empty in a recipe without Ray.

    Raises:
        ConfigError: they are no section.
    """
    variables = OmegaConf.select(config, RAY_VARIABLES)
    if variables is not None and not isinstance(variables, Mapping):
        raise ConfigError(
            f"{RAY_VARIABLES}={variables!r} is not allowed. Allowed: a section such as {{}} or {{NAME: VALUE}}. "
            f"To set one variable, write +{RAY_VARIABLES}.NAME=VALUE."
        )
    return variables or {}


def _check_options(arguments: Sequence[str]) -> None:
    """Parse a command line as `hydra.main` does, whose own parser prints a page of usage about an unknown option.

    Raises:
        ConfigError: an option is unknown or lacks its value, or overrides stand apart.
    """

    def refuse(message: str) -> NoReturn:
        raise ConfigError(
            f"{message}. Allowed: KEY=VALUE, all side by side, --cfg job (prints the composed config), --resolve, "
            "--config-name NAME and --help. A setting has no dashes, such as data.seed=1."
        )

    parser = get_args_parser()
    parser.error = refuse
    parser.parse_args(arguments)


def _accept_lazy_help() -> None:
    """Let Hydra make its parser on Python 3.14, where argparse requires that each help is a string.

    Source: `LazyCompletionHelp` in hydra/_internal/utils.py (Hydra 1.3.8), an object that is turned into a string late.
    """
    if sys.version_info >= (3, 14):
        ArgumentParser._check_help = lambda parser, action: None  # type: ignore[attr-defined]
