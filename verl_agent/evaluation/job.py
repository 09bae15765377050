"""One evaluation as a folder: what was asked for, what is on record, what is still to be played, and the results."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from verl_agent.agents.registry import make_agent
from verl_agent.config.keys import check_complete
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import select_tasks
from verl_agent.errors import ConfigError
from verl_agent.evaluation.loop import PlannedEpisode, pending
from verl_agent.evaluation.report import comparison_table, results_table, write_report
from verl_agent.evaluation.results import Comparison, compare, summarize
from verl_agent.evaluation.settings import EvaluationConfig, evaluation_config
from verl_agent.models.hf import check_context, context_length, load_config
from verl_agent.models.resolve import resolve_model
from verl_agent.platform.detect import use_cpu_device
from verl_agent.rollout.oracle import ORACLE
from verl_agent.runs.identity import claim
from verl_agent.trace.provenance import Provenance
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records
from verl_agent.types import TaskItem

RECORDS, REPORT, SETTINGS, LOG = "episodes.jsonl", "evaluation.json", "settings.json", "evaluation.log"
MACHINE = (
    "engine",
    "env.hosts",
    "env.max_env_error_rate",
    "env.retries",
    "env.timeout_s",
    "evaluation.compare_with",
    "evaluation.concurrency",
    "evaluation.output_dir",
)
"""Settings of the machine, on which no result depends."""
MAY_CHANGE = (
    *MACHINE,
    "env.eval_tasks",
    "env.train_tasks",
    "evaluation.max_tasks",
    "evaluation.purpose",
    "evaluation.samples",
    "evaluation.tasks",
)
"""Settings that may differ when an evaluation resumes, as patterns of `verl_agent.runs.identity.claim`."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation, checked.

    Attributes:
        config: its typed sections.
        plain: the same as it was composed, for the report.
        items: tasks to play.
        model: folder or hub id that is loaded, or `oracle`.
        folder: where records and results go.
        earlier: episodes of the same evaluation that are already in `folder`.
        baseline: episodes to compare with; empty for none.
    """

    config: EvaluationConfig
    plain: Mapping[str, Any]
    items: list[TaskItem]
    model: str
    folder: Path
    earlier: list[EpisodeRecord]
    baseline: list[EpisodeRecord]

    @property
    def slots(self) -> list[PlannedEpisode]:
        """What is still to be played."""
        return pending(self.items, self.config.evaluation.samples, self.earlier)

    @property
    def planned(self) -> int:
        """Episodes of the whole evaluation."""
        return len(self.items) * self.config.evaluation.samples

    def records(self) -> list[EpisodeRecord]:
        """The episodes on disk that belong to the tasks and samples asked for."""
        return _records_of(self.folder, {item.id for item in self.items}, self.config.evaluation.samples)


def prepare_evaluation(config: DictConfig) -> Evaluation:
    """Resolve and check a composed recipe; makes the output folder.

    Raises:
        ConfigError: anything that would make the evaluation fail later, or mix it with another one.
    """
    check_complete(config)
    try:
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the config does not resolve: {error}") from error
    assert isinstance(plain, dict)
    sections = evaluation_config(plain)
    evaluation, env = sections.evaluation, sections.agent.env
    make_agent(sections.agent.agent, make_env(env.name, env.options).action_format)
    items = select_tasks(env.name, evaluation.tasks, env.options)[: evaluation.max_tasks]
    baseline = earlier_evaluation(evaluation.compare_with) if evaluation.compare_with else []
    if evaluation.compare_with and {record["task"] for record in baseline}.isdisjoint(item.id for item in items):
        raise ConfigError(
            f"evaluation.compare_with={evaluation.compare_with!r} has no episode of the tasks {evaluation.tasks!r}. "
            "Name the folder of an evaluation of the same tasks."
        )
    model = ORACLE if config.model.path == ORACLE else served_model(str(config.model.path), sections)
    time = f"{datetime.now():%Y%m%d-%H%M%S}"
    folder = Path(evaluation.output_dir or f"runs/eval/{env.name}_{model_name(model)}_{time}").resolve()
    claim(
        folder,
        {**plain, "model": model, "horizon": {"eval_max_turns": sections.agent.horizon.turns_for_evaluation()}},
        MAY_CHANGE,
        contents="another evaluation",
        advice="Choose another evaluation.output_dir, or the same settings.",
        file=SETTINGS,
    )
    earlier = _records_of(folder, {item.id for item in items}, evaluation.samples)
    return Evaluation(sections, plain, items, model, folder, earlier, baseline)


def earlier_evaluation(folder: str) -> list[EpisodeRecord]:
    """The episodes of an evaluation that this one is compared with.

    Raises:
        ConfigError: there is none.
    """
    try:
        return list(read_records(Path(folder) / RECORDS))
    except ConfigError as error:
        raise ConfigError(
            f"evaluation.compare_with={folder!r} is no folder of an evaluation that can be read: {error}"
        ) from error


def served_model(path: str, config: EvaluationConfig) -> str:
    """The folder or hub id of a model that can be played with here.

    Raises:
        ConfigError: the machine has not what the recipe is for, or the model cannot be had or reads too little.
    """
    check_device(config.engine.device)
    model, lengths = resolve_model(path, key="model.path"), config.data
    longest = context_length(load_config(model, "model.path"))
    check_context(longest, lengths.max_prompt_length, lengths.max_response_length, f"model.path={path!r}")
    return model


def check_device(device: str) -> None:
    """The recipe is sized for what this machine has.

    Raises:
        ConfigError: it is for a GPU where there is none, or for a CPU where there is one.
    """
    if device not in ("cuda", "cpu"):
        raise ConfigError(f"engine.device={device!r} is not known. Allowed: cuda, cpu.")
    if device == "cuda" and use_cpu_device():
        raise ConfigError(
            "engine.device='cuda': this recipe is sized for a GPU, and the machine has none. Choose one whose name "
            "ends with _cpu, or set engine.device=cpu to play this one on the CPU all the same."
        )
    if device == "cpu" and not use_cpu_device():
        raise ConfigError(
            "engine.device='cpu': this recipe is sized for a CPU, and the machine has an accelerator. Set "
            "engine.device=cuda to use it, or VERL_PLATFORM=cpu with the packages of `make setup DEVICE=cpu`."
        )


def model_name(model: str) -> str:
    """A short name for folders: `<run>_step<n>` for a checkpoint, else the last part of the path or hub id."""
    checkpoint = re.search(r"([^/]+)/global_step_(\d+)(?:/|$)", model)
    return f"{checkpoint[1]}_step{checkpoint[2]}" if checkpoint else Path(model).name


def report(job: Evaluation, console: Console) -> None:
    """Show and write what is on disk, if anything is."""
    records = job.records()
    found = summarize(records)
    if not found:
        return
    overall = found[-1]
    played = overall.episodes + overall.env_errors
    name = f"{job.config.agent.env.name}, {job.config.evaluation.tasks}: {model_name(job.model)}"
    console.print(
        results_table(found, name if played == job.planned else f"{name} ({played} of {job.planned} episodes)")
    )
    compared: list[Comparison] = compare(job.baseline, records) if comparable_yet(job, records) else []
    if compared:
        console.print(comparison_table(compared, str(job.config.evaluation.compare_with)))
    facts = {
        "provenance": asdict(Provenance.collect()),
        "model": job.model,
        "seed": job.config.evaluation.seed,
        "planned": job.planned,
        "played": played,
        "config": job.plain,
    }
    write_report(job.folder / REPORT, facts, found, compared)
    console.print(f"results: {job.folder / REPORT}\nepisodes: {job.folder / RECORDS}", markup=False, soft_wrap=True)


def comparable_yet(job: Evaluation, records: Sequence[EpisodeRecord]) -> bool:
    """Whether a task of the evaluation to compare with has been played already."""
    return not {record["task"] for record in job.baseline}.isdisjoint(record["task"] for record in records)


def _records_of(folder: Path, tasks: set[str], samples: int) -> list[EpisodeRecord]:
    path = folder / RECORDS
    if not path.is_file():
        return []
    return [record for record in read_records(path) if record["task"] in tasks and record["sample"] < samples]
