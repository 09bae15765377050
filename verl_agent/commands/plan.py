"""Command `verl-agent plan`: limits, batch sizes and memory of a run, without the GPU at hand."""

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.box import SIMPLE
from rich.table import Table

from verl_agent.commands.recipes import check_recipe
from verl_agent.commands.terminal import print_line, quiet_libraries
from verl_agent.errors import ConfigError
from verl_agent.platform.versions import require_modules
from verl_agent.platform.worker_environment import thread_waiting
from verl_agent.terminal import Console, show_table, styled

if TYPE_CHECKING:
    from verl_agent.config.plan import RunPlan
    from verl_agent.training.preflight.estimates import Shape
    from verl_agent.training.preflight.oracle_lengths import OracleLengths
    from verl_agent.training.preflight.planning import Suggestion

SMALL_GB = 40.0
"""Memory of a GPU below which the estimated time, that of one with 80 GB, is too short."""
PARALLEL = "actor_rollout_ref.rollout.tensor_model_parallel_size"


def plan(
    recipe: Annotated[Path, typer.Argument(help="Recipe of a training run.", metavar="RECIPE")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides of its settings.", metavar="KEY=VALUE...")
    ] = None,
    gpu: Annotated[str, typer.Option(help="Memory of one GPU, such as 24gb.", metavar="MEMORY")] = "80gb",
    gpus: Annotated[int, typer.Option(help="Number of GPUs.", min=1)] = 1,
    tasks: Annotated[int, typer.Option(help="Most tasks that the oracle plays.", min=1)] = 200,
    seconds: Annotated[float, typer.Option(help="Seconds after which no further task begins.", min=0)] = 60.0,
) -> None:
    """Suggest turn limit, lengths and batch sizes of a run, and estimate its memory; a GPU need not be here.

    The limits come from the oracle and the tokenizer, the batch sizes from the memory of the GPU; on a CPU
    they stay. Nothing is trained.
    """
    card_gb = gpu_memory(gpu)
    check_recipe(recipe)
    require_modules("verl")
    print_line(f"reading {recipe} ...")
    os.environ.update(thread_waiting())  # before the import of torch: the speed is measured as the run computes
    run, given = compose_plannable(recipe, overrides or [], gpus)
    on_cpu, model = run.on_cpu, run.actor.path
    if on_cpu and (gpus, card_gb) != (1, 80.0):
        raise ConfigError(f"{recipe} is for a CPU: --gpu and --gpus have no effect. Leave them out.")
    print_line(f"{recipe}: {model} on " + ("the CPU" if on_cpu else f"{gpus} x {card_gb:g} GB"))
    from verl_agent.training.preflight.machine import shapes_of

    counting, prompt, oracle = measure_lengths(run, tasks, seconds)
    shape, critic = shapes_of(run)
    if shape is None and not on_cpu:
        raise ConfigError(
            f"the shape of {model!r} is not known on this machine, so its memory is not estimated. Add "
            "actor_rollout_ref.model.path=NAME to the command: a model that is here, or one of the same size."
        )
    if on_cpu or shape is None:
        suggested, savings, need = fit_on_cpu(run, prompt, oracle, shape, critic)
    else:
        suggested, savings, need = first_fit(run, prompt, oracle, (shape, critic), card_gb)
    _show(suggested, "" if counting == model else f" in tokens of {counting}, not of {model}")
    print_line(need)
    if not on_cpu and card_gb < SMALL_GB:
        print_line("The time is that of a GPU of 80 GB; a smaller one takes several times as long.")
    if counting != model:
        print_line(
            f"The lengths are no advice for {model}: plan again where its tokenizer is. With those of {counting}:"
        )
    settings = [*given, *savings, *(one.override for one in suggested if one.value != one.now)]
    if refusal := find_refusal(recipe, settings, has_models=counting == model):
        print_line(f"The run does not start here: {refusal}")
    print_line(shlex.join(["verl-agent", "train", str(recipe), *settings]))


def read_run(recipe: Path, overrides: Sequence[str]) -> "RunPlan":
    """Return the settings of a recipe as `verl-agent train` reads them.

    Raises:
        ConfigError: recipe and overrides do not compose, or lack a value.
    """
    from verl_agent.config.composing import BASE, compose_recipe
    from verl_agent.config.plan import RunPlan

    return RunPlan.read(compose_recipe(recipe.resolve(), BASE, overrides))


def find_refusal(recipe: Path, overrides: Sequence[str], has_models: bool) -> str:
    """Return the error that ends a run at its start on any machine; empty if it starts.

    Args:
        overrides: those of the command that the plan suggests.
        has_models: the files of the policy are on this machine.
    """
    with quiet_libraries():
        from verl_agent.training.preflight.rl import check_elsewhere

        try:
            check_elsewhere(read_run(recipe, overrides), has_models)
        except ConfigError as error:
            return str(error)
    return ""


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


def compose_plannable(recipe: Path, overrides: Sequence[str], gpus: int) -> "tuple[RunPlan, list[str]]":
    """Return the plan of a recipe that can be planned, and the overrides that it has.

    Raises:
        ConfigError: it does not compose, is of several environments, needs more GPUs, or has a schedule that other
            turn limits would break.
    """
    given = list(overrides)
    run = read_run(recipe, given)
    if not run.on_cpu:
        given = [f"trainer.n_gpus_per_node={gpus}", "trainer.nnodes=1", *given]
        run = read_run(recipe, given)
    if run.value("env.mixture"):
        raise ConfigError(f"{recipe} has env.mixture, which has no common limits. Plan a recipe of each environment.")
    if not run.on_cpu and int(run.engine.ranks) > gpus:
        raise ConfigError(f"{PARALLEL} exceeds --gpus={gpus}. Add {PARALLEL}=1 to the command, or raise --gpus.")
    horizon = run.values["horizon"]
    shaped = [key for key in ("grow_by", "adaptive", "per_task", "deepen", "schedule", "replay") if horizon.get(key)]
    shaped += ["order"] if horizon.get("order", "growing") != "growing" else []
    shaped += ["steps_per_stage"] if isinstance(horizon.get("steps_per_stage"), list) else []
    if shaped:
        raise ConfigError(
            f"horizon.{shaped[0]} of {recipe} or of the command fits horizon.max_turns={horizon['max_turns']} only, "
            "and a plan suggests other limits. Leave it out, or plan a recipe of the same environment with one limit "
            "and set the stages by hand."
        )
    return run, given


def measure_lengths(plan: "RunPlan", tasks: int, seconds: float) -> "tuple[str, int, OracleLengths | None]":
    """Measure the prompts and let the oracle play; print the lengths.

    Returns:
        The model whose tokenizer counted, the longest prompt, and the lengths of the oracle's episodes.
    """
    with quiet_libraries():
        from verl_agent.models.hf import load_tokenizer
        from verl_agent.models.resolve import resolve_model
        from verl_agent.training.preflight.oracle_lengths import find_tokenizer, measure_oracle
        from verl_agent.training.preflight.prompts import measure_prompts

        (run_env,) = plan.envs
        model = find_tokenizer(plan.actor.path, print_line)
        if model != plan.actor.path and run_env.new_agent().calls_functions:
            print_line(f"Function calls are counted as {model} writes them.")
            options = {**run_env.agent.options, "calls": "smollm2"}
            run_env = replace(run_env, agent=replace(run_env.agent, options=options))
        print_line(f"Beginning up to {tasks} tasks of {run_env.env.name}, for about {seconds:g} s ...")
        prompts = measure_prompts(run_env, model, tasks, seconds)
        print_line(str(prompts))
        print_line(f"Then an oracle plays if there is one, for about {seconds:g} s or an episode, a minute at most ...")
        oracle = measure_oracle(run_env, load_tokenizer(resolve_model(model), "model"), tasks, seconds)
    print_line(str(oracle or f"env {run_env.env.name!r} has no oracle: turn limit and response length stay"))
    return model, prompts.suggested, oracle


Plan: TypeAlias = "tuple[list[Suggestion], Sequence[str], str]"
"""Suggested settings, overrides that save memory, and the sentence on memory and time."""


def first_fit(
    plan: "RunPlan",
    prompt: int,
    oracle: "OracleLengths | None",
    shapes: "tuple[Shape, Shape | None]",
    card_gb: float,
) -> Plan:
    """Return the plan with the longest replies for which the run fits into the context and on its GPUs.

    Raises:
        ConfigError: the run does not fit.
    """
    from verl_agent.training.preflight.planning import apply, fit_on_gpus, reply_limits, suggest_limits

    *longer, shortest = reply_limits(plan.envs[0].episode.max_tokens_per_turn, oracle)
    for reply in (*longer, shortest):
        limits = suggest_limits(plan, prompt, oracle, reply)
        try:
            found = fit_on_gpus(apply(plan, limits, shapes[0]), *shapes, card_gb)
        except ConfigError:
            if reply == shortest:
                raise
            continue
        return [*limits, *found.suggestions], found.overrides, str(found.needed)
    raise AssertionError("reply_limits is never empty")


def fit_on_cpu(
    plan: "RunPlan",
    prompt: int,
    oracle: "OracleLengths | None",
    shape: "Shape | None",
    critic: "Shape | None",
) -> Plan:
    """Return the limits of a run on this machine's CPU, with its memory and time.

    Raises:
        ConfigError: the episodes do not fit into the model's context.
    """
    from verl_agent.training.preflight.machine import describe_step, needed_gb
    from verl_agent.training.preflight.planning import apply, reply_limits, suggest_limits

    reply = reply_limits(plan.envs[0].episode.max_tokens_per_turn, oracle)[0]
    limits = suggest_limits(plan, prompt, oracle, reply)
    planned = apply(plan, limits, shape)
    if shape is None:
        need = f"memory and time are not estimated: the shape of {plan.actor.path} is not known on this machine"
        return limits, [], need
    episode = oracle.expected(planned.envs[0].horizon.first_limit) if oracle else None
    memory = f"estimated: {needed_gb(planned)[0]:.0f} GB of memory"
    return limits, [], f"{memory}; {describe_step(planned, shape, critic, episode)}"


def _show(suggestions: "Sequence[Suggestion]", counted_in: str) -> None:
    table = Table("setting", "recipe", "suggested", "reason", box=SIMPLE)
    for one in suggestions:
        table.add_row(
            one.key, *(styled(str(value)) for value in (one.now, one.value)), one.reason + counted_in * one.of_tokens
        )
    show_table(Console(width=150), table)
