"""Command `verl-agent launch`: print the job that runs a recipe on a cluster, from one set of values."""

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from verl_agent.commands.recipes import PARTS, copy_hint
from verl_agent.errors import MAX_MESSAGE_CHARS, ConfigError, did_you_mean
from verl_agent.terminal import Console, say, write_output


class Scheduler(StrEnum):
    """Programs that run jobs on a cluster."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    SKY = "sky"


def launch(  # noqa: PLR0913 - one for each option
    scheduler: Annotated[Scheduler, typer.Argument(help="Scheduler whose file is printed.")],
    recipe: Annotated[Path, typer.Argument(help="Recipe of a training run.", metavar="RECIPE")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides of its settings.", metavar="KEY=VALUE...")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the job. Default: that of the recipe.")] = None,
    nodes: Annotated[int, typer.Option(help="Machines.")] = 1,
    gpus: Annotated[int, typer.Option(help="GPUs of each machine, 0 for a run on CPUs.")] = 8,
    cpus: Annotated[int, typer.Option(help="CPUs of each machine.")] = 32,
    memory: Annotated[int, typer.Option(help="Memory of each machine in GB.")] = 256,
    hours: Annotated[int, typer.Option(help="Time limit in hours.")] = 24,
    folder: Annotated[
        Path, typer.Option(help="Folder with recipes/ and runs/ that all machines see. Default: this folder.")
    ] = Path(),
    venv: Annotated[
        str | None,
        typer.Option(help="Slurm: virtual environment. Default: .venv-gpu or, without GPUs, .venv in the folder."),
    ] = None,
    partition: Annotated[str, typer.Option(help="Slurm: partition.")] = "",
    image: Annotated[
        str | None,
        typer.Option(help="Kubernetes, SkyPilot: image. Default: verl-agent:gpu-vllm, verl-agent:cpu without GPUs."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="Keeps runs/. Kubernetes: name of a volume claim. SkyPilot: URL of a bucket, as s3://NAME."),
    ] = None,
    accelerator: Annotated[str, typer.Option(help="SkyPilot: kind of GPU.")] = "H100",
    retries: Annotated[int, typer.Option(help="Kubernetes, SkyPilot: restarts of a job that failed.")] = 3,
) -> None:
    """Print the file that submits a training run to Slurm, Kubernetes (KubeRay) or SkyPilot; submit nothing.

    The recipe and its overrides are composed and checked first, as `verl-agent train` does.
    """
    from verl_agent.commands.jobs import ClusterJob, render_job
    from verl_agent.sections import section

    root = folder.resolve()
    check_job_recipe(root, recipe)
    if scheduler is not Scheduler.SLURM and store is None:
        example = "verl-agent-runs" if scheduler is Scheduler.KUBERNETES else "s3://my-runs"
        raise ConfigError(f"{scheduler} needs a store, which keeps runs/ between machines: --store {example}.")
    values = {
        "name": name or f"{recipe.parent.name}-{recipe.stem}".lower().replace("_", "-").strip("-"),
        "recipe": str(recipe),
        "overrides": overrides or [],
        "nodes": nodes,
        "gpus": gpus,
        "cpus": cpus,
        "memory": memory,
        "hours": hours,
        "folder": str(root),
        "venv": venv or f"{root}/{'.venv-gpu' if gpus else '.venv'}",
        "partition": partition,
        "image": image or f"verl-agent:{'gpu-vllm' if gpus else 'cpu'}",
        "store": store or "none",
        "accelerator": accelerator,
        "retries": retries,
    }
    job = section("launch", ClusterJob, values)
    if find_spec("verl"):
        from verl_agent.config.composing import compose_training

        compose_training(root / recipe, job.settings, resolve=False)
    else:
        say(Console(stderr=True), f"The settings of {recipe} are not checked: verl is not installed here.")
    write_output(render_job(scheduler, job))


def check_job_recipe(folder: Path, recipe: Path) -> None:
    """Check that a job can find its recipe.

    Raises:
        ConfigError: the path is absolute, or there is no such file.
    """
    if recipe.is_absolute():
        raise ConfigError(f"recipe {str(recipe)!r} is absolute. Give its path below the folder of the job, --folder.")
    if not (folder / recipe).is_file():
        found = [path for path in folder.glob("recipes/**/*.yaml") if not path.name.startswith(PARTS)]
        known = [str(path.relative_to(folder)) for path in found]
        hint = copy_hint(recipe) or did_you_mean(str(recipe), known, MAX_MESSAGE_CHARS)
        raise ConfigError(f"recipe {str(recipe)!r} does not exist in {folder}. {hint}")
