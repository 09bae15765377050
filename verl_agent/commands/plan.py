"""Command `verl-agent plan`: limits, batch sizes and memory of a run, without the GPU at hand."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verl_agent.commands.recipes import check_recipe
from verl_agent.commands.terminal import print_line, quiet_libraries
from verl_agent.errors import ConfigError
from verl_agent.platform.versions import require_modules

if TYPE_CHECKING:
    from verl_agent.training.preflight.estimates import Shape
    from verl_agent.training.preflight.oracle_lengths import OracleLengths
    from verl_agent.training.preflight.planning import Fit, Suggestion

SMALL_GB = 40.0
"""Memory of a GPU below which the estimated time, that of one with 80 GB, is too short."""
PARALLEL = "actor_rollout_ref.rollout.tensor_model_parallel_size"


def plan(
    recipe: Annotated[Path, typer.Argument(help="Recipe of a training run on GPUs.", metavar="RECIPE")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides of its settings.", metavar="KEY=VALUE...")
    ] = None,
    gpu: Annotated[str, typer.Option(help="Memory of one GPU, such as 24gb.", metavar="MEMORY")] = "80gb",
    gpus: Annotated[int, typer.Option(help="Number of GPUs.", min=1)] = 1,
    tasks: Annotated[int, typer.Option(help="Most tasks that the oracle plays.", min=1)] = 200,
    seconds: Annotated[float, typer.Option(help="Seconds after which no further task begins.", min=0)] = 60.0,
) -> None:
    """Suggest turn limit, lengths and batch sizes of a run, and estimate its memory; the GPU need not be here.

    The limits come from the oracle and the tokenizer, the batch sizes from the memory of the GPU. Nothing is trained.
    """
    card_gb = gpu_memory(gpu)
    check_recipe(recipe)
    require_modules("verl")
    given = [f"trainer.n_gpus_per_node={gpus}", "trainer.nnodes=1", *(overrides or [])]
    config = compose_plannable(recipe, given, gpus)
    model = config["actor_rollout_ref"]["model"]["path"]
    print_line(f"{recipe}: {model} on {gpus} x {card_gb:g} GB")
    from verl_agent.training.preflight.estimates import shape_of

    prompt, oracle = measure_lengths(config, tasks, seconds)
    shape = shape_of(model)
    if shape is None:
        raise ConfigError(
            f"the shape of {model!r} is not known on this machine, so its memory is not estimated. Add "
            "actor_rollout_ref.model.path=NAME to the command: a model that is here, or one of the same size."
        )
    critic = shape_of(config["critic"]["model"]["path"]) if uses_critic(config) else None
    suggested, found = first_fit(config, prompt, oracle, (shape, critic), card_gb)
    _show(suggested)
    print_line(str(found.needed))
    if card_gb < SMALL_GB:
        print_line("The time is that of a GPU of 80 GB; a smaller one takes several times as long.")
    changed = [one.override for one in suggested if one.value != one.now]
    print_line(shlex.join(["verl-agent", "train", str(recipe), *given, *found.overrides, *changed]))


def gpu_memory(text: str) -> float:
    """Return the GB that a text names.

    Raises:
        ConfigError: it names none.

    Example:
        >>> gpu_memory("24gb"), gpu_memory("80")
        (24.0, 80.0)
    """
    match = re.fullmatch(r"(\d{1,3})\s*(gb)?", text.strip(), re.IGNORECASE)
    if match is None or not int(match[1]) >= 4:
        raise ConfigError(f"--gpu={text!r} is not allowed. Allowed: the memory of one GPU from 4gb on, such as 24gb.")
    return float(match[1])


def compose_plannable(recipe: Path, overrides: Sequence[str], gpus: int) -> dict[str, Any]:
    """Return the config of a recipe that can be planned.

    Raises:
        ConfigError: it does not compose, is for a CPU, is of several environments, needs more GPUs, or has a
            schedule that other turn limits would break.
    """
    from verl_agent.config.composing import compose_training

    config = compose_training(recipe.resolve(), overrides)
    if config["trainer"]["device"] == "cpu":
        raise ConfigError(f"{recipe} is for a CPU. Plan a recipe for GPUs, such as {recipe.with_name('grpo.yaml')}.")
    if config["env"]["mixture"]:
        raise ConfigError(f"{recipe} has env.mixture, which has no common limits. Plan a recipe of each environment.")
    if int(config["actor_rollout_ref"]["rollout"]["tensor_model_parallel_size"]) > gpus:
        raise ConfigError(f"{PARALLEL} exceeds --gpus={gpus}. Add {PARALLEL}=1 to the command, or raise --gpus.")
    horizon = config["horizon"]
    shaped = [key for key in ("grow_by", "adaptive", "schedule") if horizon.get(key)]
    shaped += ["order"] if horizon.get("order", "growing") != "growing" else []
    shaped += ["steps_per_stage"] if isinstance(horizon.get("steps_per_stage"), list) else []
    if shaped:
        raise ConfigError(
            f"{recipe} sets horizon.{shaped[0]}, which fits its own horizon.max_turns={horizon['max_turns']} only, "
            "and a plan suggests other limits. Plan grpo.yaml of the same folder, and set the stages by hand."
        )
    return config


def uses_critic(config: dict[str, Any]) -> bool:
    """Return True if a run trains a critic."""
    from omegaconf import OmegaConf

    from verl_agent.config.algorithms import has_critic

    return has_critic(OmegaConf.create({"critic": config["critic"], "algorithm": config["algorithm"]}))


def measure_lengths(config: dict[str, Any], tasks: int, seconds: float) -> "tuple[int, OracleLengths | None]":
    """Measure the prompts and let the oracle play; print the lengths, return the longest prompt and the oracle's."""
    from verl_agent.config.mixture import run_envs

    with quiet_libraries():
        from verl_agent.models.hf import load_tokenizer
        from verl_agent.models.resolve import resolve_model
        from verl_agent.training.preflight.oracle_lengths import find_tokenizer, measure_oracle
        from verl_agent.training.preflight.prompts import measure_prompts

        (run_env,) = run_envs(config)
        model = find_tokenizer(config["actor_rollout_ref"]["model"]["path"], print_line)
        prompts = measure_prompts(run_env, model, tasks, seconds)
        print_line(str(prompts))
        oracle = measure_oracle(run_env, load_tokenizer(resolve_model(model), "model"), tasks, seconds)
    print_line(str(oracle or f"env {run_env.env.name!r} has no oracle: turn limit and response length stay"))
    return prompts.suggested, oracle


def first_fit(
    config: dict[str, Any],
    prompt: int,
    oracle: "OracleLengths | None",
    shapes: "tuple[Shape, Shape | None]",
    card_gb: float,
) -> "tuple[list[Suggestion], Fit]":
    """Return the limits with the longest replies for which the run fits, with its batch sizes.

    Raises:
        ConfigError: the run does not fit.
    """
    from verl_agent.training.preflight.planning import apply, fit_on_gpus, reply_limits, suggest_limits

    *longer, shortest = reply_limits(int(config["episode"]["max_tokens_per_turn"]), oracle)
    for reply in (*longer, shortest):
        limits = suggest_limits(config, prompt, oracle, reply)
        try:
            found = fit_on_gpus(apply(config, limits), *shapes, card_gb)
        except ConfigError:
            if reply == shortest:
                raise
            continue
        return [*limits, *found.suggestions], found
    raise AssertionError("reply_limits is never empty")


def _show(suggestions: "Sequence[Suggestion]") -> None:
    table = Table("setting", "recipe", "suggested", "reason", box=SIMPLE)
    for one in suggestions:
        table.add_row(one.key, *(escape(str(value)) for value in (one.now, one.value)), one.reason)
    Console(width=150).print(table)
