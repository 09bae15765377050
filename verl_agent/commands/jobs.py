"""Values of a job on a cluster, and the file of each scheduler that is rendered from them."""

import re
import shlex
from typing import Annotated

from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_agent.commands.launch import Scheduler
from verl_agent.errors import ConfigError
from verl_agent.sections import STRICT

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
    loader = PackageLoader("verl_agent.commands", "templates/launch")
    templates = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return templates.get_template(TEMPLATES[scheduler]).render(job=job)
