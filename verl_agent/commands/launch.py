"""Command `verl-agent launch`: print the job that runs a recipe on a cluster, from one set of values."""

import re
import shlex
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_agent.commands.recipes import PARTS, copy_hint
from verl_agent.errors import MAX_MESSAGE_CHARS, ConfigError, did_you_mean
from verl_agent.sections import STRICT, section
from verl_agent.terminal import Console, say, write_output


class Scheduler(StrEnum):
    """Programs that run jobs on a cluster."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    SKY = "sky"


WORKER_CPUS, OTHER_CPUS = 3, 6
"""Logical CPUs of Ray for each rank, and for all other processes of a run."""
TEXTS = {
    "name": (r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", "at most 40 lowercase letters, digits and dashes"),
    "folder": (r"/[-\w./+@]*", "an absolute path without spaces"),
    "venv": (r"/[-\w./+@]*", "an absolute path without spaces"),
    "partition": (r"[\w,-]*", "names of partitions, with commas between them"),
    "image": (r"\w[\w./:@-]*", "an image such as registry/verl-agent:gpu-vllm"),
    "store": (r"\w[\w./:-]*", "the name of a volume claim, or the URL of a bucket"),
    "accelerator": (r"[\w-]+", "a GPU as SkyPilot names it, such as H100"),
}
"""Pattern of each text, which stands unquoted in a file, and its description."""

TEMPLATES = {
    Scheduler.SLURM: "slurm.sh.txt",
    Scheduler.KUBERNETES: "kubernetes.yaml.txt",
    Scheduler.SKY: "sky.yaml.txt",
}


@dataclass(frozen=True, slots=True, config=STRICT)
class ClusterJob:
    """Values of a job, from which the file of each scheduler is rendered."""

    name: str
    """Name of the job."""
    recipe: str
    """Path of the recipe of a training run, relative to `folder`."""
    overrides: list[str]
    """Overrides of its settings, `KEY=VALUE`."""
    nodes: Annotated[int, Field(ge=1, le=1024)]
    """Number of machines."""
    gpus: Annotated[int, Field(ge=0, le=16)]
    """GPUs of each machine, one rank each; 0 for one rank on the CPU."""
    cpus: Annotated[int, Field(ge=1, le=1024)]
    """CPUs of each machine."""
    memory: Annotated[int, Field(ge=4, le=100_000)]
    """Memory of each machine in GB."""
    hours: Annotated[int, Field(ge=1, le=720)]
    """Time limit. A Slurm job that reaches it is queued again."""
    retries: Annotated[int, Field(ge=0, le=100)]
    """Restarts after a failure, on Kubernetes and SkyPilot."""
    folder: str
    """Folder with recipes/ and runs/, which all machines see."""
    venv: str
    """Virtual environment, on Slurm."""
    partition: str
    """Partition, on Slurm; empty for the default one."""
    image: str
    """Image of requirements/Dockerfile, on Kubernetes and SkyPilot."""
    store: str
    """What keeps runs/: the volume claim on Kubernetes, the URL of a bucket on SkyPilot."""
    accelerator: str
    """Kind of GPU, on SkyPilot."""

    def __post_init__(self) -> None:
        for key, (pattern, allowed) in TEXTS.items():
            if not re.fullmatch(pattern, value := getattr(self, key)):
                raise ConfigError(f"launch.{key}={value!r} is not allowed. Allowed: {allowed}.")
        if broken := next((one for one in self.overrides if "\n" in one), None):
            raise ConfigError(f"{broken!r} is not allowed. Allowed: KEY=VALUE in one line, such as data.seed=1.")

    @property
    def ranks(self) -> int:
        """Ranks of each machine."""
        return self.gpus or 1

    @property
    def ray_cpus(self) -> int:
        """Logical CPUs of each Ray node: no fewer than its ranks and the other processes of a run take."""
        return max(self.cpus, WORKER_CPUS * self.ranks + OTHER_CPUS)

    @property
    def minutes(self) -> int:
        """Time limit in minutes."""
        return 60 * self.hours

    @property
    def command(self) -> str:
        """Command line of the run."""
        return shlex.join(["verl-agent", "train", self.recipe, *self.settings])

    @property
    def settings(self) -> list[str]:
        """Overrides of the run: its machines, and those of the user."""
        return [f"trainer.nnodes={self.nodes}", f"trainer.n_gpus_per_node={self.ranks}", *self.overrides]


def render_job(scheduler: Scheduler, job: ClusterJob) -> str:
    """Return the file that submits a job to a scheduler."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("verl_agent.commands", "templates/launch")
    templates = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return templates.get_template(TEMPLATES[scheduler]).render(job=job)


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
