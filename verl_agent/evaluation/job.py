"""One evaluation and its folder: settings, planned and recorded episodes."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from verl_agent.agents.registry import check_retries
from verl_agent.config.catalogue import may_change
from verl_agent.envs.model_api.reply_log import FILE as REPLIES
from verl_agent.errors import ConfigError
from verl_agent.evaluation.api_policy import check_api
from verl_agent.evaluation.loop import ErrorShare, PlannedEpisode, error_share, pending_episodes
from verl_agent.evaluation.policies import RANDOM, check_policy, is_model
from verl_agent.evaluation.recorded_play import play_of_evaluation
from verl_agent.evaluation.settings import EvaluationConfig, EvaluationSettings, read_evaluation
from verl_agent.evaluation.training_differences import TrainingDifference, run_of_model, training_differences
from verl_agent.models.hf import check_context, check_template_options, context_length, load_config, load_tokenizer
from verl_agent.models.resolve import resolve_model, weights_on_disk
from verl_agent.oversight.rules import Rule, asks_person, read_rules
from verl_agent.oversight.terminal import check_terminal
from verl_agent.platform.detect import use_cpu_device
from verl_agent.results.folder import GAME, RECORDS, SETTINGS, model_name, planned_records, unplayed
from verl_agent.results.results import final_records
from verl_agent.rollout.limits import check_turns, template_tokens
from verl_agent.rollout.oracle import ORACLE
from verl_agent.runs.identity import claim
from verl_agent.system.installation import require_engine
from verl_agent.system.operators import check_operators, check_together
from verl_agent.system.resources import TEMPORARY_GB, make_folder, require_temporary_space
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records
from verl_agent.types import TaskItem


@dataclass(frozen=True)
class Evaluation:
    """One checked evaluation.

    Attributes:
        model: folder or hub id of the model, `oracle`, `random`, `python:MODULE:NAME`, or the label of a model behind
            an API, such as `openai:gpt-4o-mini`.
        earlier: recorded episodes of earlier starts in `folder`.
        baseline: episodes of the evaluation to compare with; empty for none.
        rules: rules of `evaluation.approve`; empty to carry out every action.
    """

    config: EvaluationConfig
    items: list[TaskItem]
    model: str
    folder: Path
    earlier: list[EpisodeRecord]
    baseline: list[EpisodeRecord]
    rules: list[Rule]

    @cached_property
    def pending(self) -> list[PlannedEpisode]:
        """Episodes that this start has to play; none if the evaluation is finished."""
        rate = self.config.run.env.max_env_error_rate
        return pending_episodes(self.items, self.config.evaluation.samples, self.earlier, rate)

    @cached_property
    def errors(self) -> ErrorShare:
        """Share of failed episodes, without the pending ones until they are played."""
        return error_share(self.planned, self.earlier, self.pending, self.config.run.env.max_env_error_rate)

    @property
    def planned(self) -> int:
        """Number of episodes of the whole evaluation."""
        return len(self.items) * self.config.evaluation.samples

    @cached_property
    def baseline_unplayed(self) -> str:
        """Played part of an unfinished evaluation to compare with, such as `12 of 60 episodes`; else empty."""
        folder = self.config.evaluation.compare_with
        return "" if folder is None else unplayed(Path(folder), self.baseline)

    @cached_property
    def training_run(self) -> Path | None:
        """Folder of the run that trained the model; None if it is not known."""
        return run_of_model(self.model) if self.config.api is None and is_model(self.model) else None

    @cached_property
    def training_differences(self) -> list[TrainingDifference]:
        """Settings in which the evaluation differs from the run that trained the model."""
        if self.training_run is None:
            return []
        return training_differences(self.training_run, self.config)

    def records(self) -> list[EpisodeRecord]:
        """Return the recorded episodes of the planned tasks and samples."""
        return _records_of(self.folder, self.items, self.config.evaluation.samples)

    def unplanned(self) -> int:
        """Return the number of recorded episodes of other tasks or samples, which earlier starts planned."""
        tasks, samples = {item.id for item in self.items}, self.config.evaluation.samples
        records = read_records(self.folder / RECORDS)
        return len(final_records(one for one in records if one["task"] not in tasks or one["sample"] >= samples))


def prepare_evaluation(config: DictConfig) -> Evaluation:
    """Resolve and check a composed recipe, and claim its output folder.

    Raises:
        ConfigError: the evaluation would fail later, or the folder holds another evaluation.
    """
    sections = read_evaluation(config)
    evaluation, run, model = sections.evaluation, sections.run, sections.model
    run.new_agent()
    check_retries(run.agent, run.live)
    run.judge.check()
    key = "env.eval_tasks" if evaluation.tasks == run.env.eval_tasks else "evaluation.tasks"
    items = first_tasks(run.tasks(evaluation.tasks, key), evaluation)
    baseline = _read_baseline(evaluation.compare_with) if evaluation.compare_with else []
    if evaluation.compare_with and {record["task"] for record in baseline}.isdisjoint(item.id for item in items):
        raise ConfigError(
            f"evaluation.compare_with={evaluation.compare_with!r} has no episode of the tasks {evaluation.tasks!r}. "
            "Name the folder of an evaluation of the same tasks."
        )
    rules = [] if evaluation.approve is None else read_rules(evaluation.approve, "evaluation.approve", run.live)
    if rules and (evaluation.perturb.rename or evaluation.perturb.observation_noise):
        raise ConfigError(
            "evaluation.approve is not allowed with evaluation.perturb.rename or observation_noise: the rules would "
            "read changed words, while the environment carries out the original ones. Leave one of them out."
        )
    if asks_person(rules):
        check_terminal(f"evaluation.approve={evaluation.approve!r}")
    if evaluation.logprobs is not None and (sections.api is not None or not is_model(model)):
        raise ConfigError(
            f"evaluation.logprobs={evaluation.logprobs} needs a model that this machine plays, but {model!r} has no "
            "engine of its own. Set evaluation.logprobs=null, or model.path to a model."
        )
    if sections.api is not None:
        check_api(sections.api, evaluation.temperature, evaluation.max_usd)
    else:
        model = playable_policy(model, sections, items)
    check_limits(sections, model)
    time = f"{datetime.now():%Y%m%d-%H%M%S}"
    api = {} if sections.api is None else {"model.api": asdict(sections.api)}
    folder = Path(evaluation.output_dir or f"runs/eval/{run.env.name}_{model_name(model)}_{time}").resolve()
    if (folder / GAME).is_file():
        raise ConfigError(
            f"evaluation.output_dir={str(folder)!r} holds episodes of `verl-agent play`, which the results would "
            "count. Name another folder."
        )
    make_folder(folder, "evaluation.output_dir")
    claim(
        folder,
        {
            **sections.plain,
            **api,
            **run.judge.identity(),
            "approval": [asdict(rule) for rule in rules],
            **model_identity(sections, model),
            "horizon": {"eval_max_turns": run.horizon.turns_for_evaluation()},
        },
        may_change("eval"),
        contents="another evaluation",
        advice="Choose another evaluation.output_dir, or the same settings.",
        file=SETTINGS,
        earlier=None if _holds_results(folder) else {},
    )
    play_of_evaluation(sections, model, rules).write(folder)
    earlier = _records_of(folder, items, evaluation.samples)
    return Evaluation(sections, items, model, folder, earlier, baseline, rules)


def model_identity(config: EvaluationConfig, model: str) -> dict[str, Any]:
    """Return the settings that identify the model of an evaluation: its name and the weight files of a local one.

    Args:
        model: see `Evaluation.model`.
    """
    weights = weights_on_disk(model) if config.api is None and is_model(model) else []
    return {"model": model, **({"weights": list(map(list, weights))} if weights else {})}


def first_tasks(items: Sequence[TaskItem], settings: EvaluationSettings) -> list[TaskItem]:
    """Return the tasks that `max_tasks_per_category`, then `max_tasks` leave."""
    of_category: Counter[str] = Counter()
    kept = []
    for item in items:
        of_category[item.category] += 1
        if of_category[item.category] <= (settings.max_tasks_per_category or len(items)):
            kept.append(item)
    return kept[: settings.max_tasks]


def check_limits(config: EvaluationConfig, model: str) -> str:
    """Return a sentence on replies that end an episode before its turn limit; empty if none does.

    Nothing is known of scripted policies, nor of an agent that edits the context.

    Raises:
        ConfigError: no episode can reach the turn limit.
    """
    run, api = config.run, config.api
    if run.new_agent().context.edits or (api is None and not is_model(model)):
        return ""
    limit, reply = run.horizon.turns_for_evaluation(), ("episode.max_tokens_per_turn", run.episode.max_tokens_per_turn)
    if api is not None and api.max_output_tokens:
        reply = ("model.api.max_output_tokens", api.max_output_tokens)
    around = 1
    if api is None:
        with suppress(ConfigError):  # raised again, in its order, when the model is loaded
            around = template_tokens(load_tokenizer(model, "model.path"))
    response = ("data.max_response_length", config.data.max_response_length)
    return check_turns({f"horizon.eval_max_turns={limit}": limit}, reply, response, around)


def check_engine_device(device: str) -> None:
    """Check that the recipe is sized for the hardware of this machine."""
    if device == "cuda" and use_cpu_device():
        raise ConfigError(
            "engine.device='cuda': this recipe is sized for a GPU, and the machine has none. Choose a recipe whose "
            "name ends with _cpu, or set engine.device=cpu to play this one on the CPU."
        )
    if device == "cpu" and not use_cpu_device():
        raise ConfigError(
            "engine.device='cpu': this recipe is sized for a CPU, and the machine has an accelerator. Set "
            "engine.device=cuda to use it, or VERL_PLATFORM=cpu with the packages of `make setup DEVICE=cpu`."
        )


def playable_policy(path: str, config: EvaluationConfig, items: Sequence[TaskItem]) -> str:
    """Return the model that `model.path` names as the engine loads it, or the name of another policy as it is."""
    if is_model(path):
        return resolve_for_engine(path, config)
    check_policy(path, config.run.live, items)
    return path


def resolve_for_engine(path: str, config: EvaluationConfig) -> str:
    """Return the folder or hub id of a model that this machine can play.

    Raises:
        ConfigError: the hardware does not fit the recipe, or the model is missing or its context is too short.
    """
    check_engine_device(config.engine.device)
    model, lengths = resolve_model(path, key="model.path", policies=[ORACLE, RANDOM]), config.data
    longest = context_length(load_config(model, "model.path"))
    check_context(longest, lengths.max_prompt_length, lengths.max_response_length, f"model.path={path!r}")
    if lengths.apply_chat_template_kwargs:
        check_template_options(load_tokenizer(model, "model.path"), lengths.apply_chat_template_kwargs)
    if config.engine.name == "sglang":
        require_engine("engine.name", "sglang", config.engine.device == "cpu")
    if config.engine.device == "cpu":
        check_together(
            lambda: require_temporary_space(TEMPORARY_GB), *([check_operators] if config.engine.name == "vllm" else [])
        )
    return model


def _read_baseline(folder: str) -> list[EpisodeRecord]:
    try:
        return planned_records(Path(folder))
    except ConfigError as error:
        raise ConfigError(
            f"evaluation.compare_with={folder!r} is not the folder of an evaluation that can be read: {error}"
        ) from error


def _holds_results(folder: Path) -> bool:
    """Return True if a folder holds episodes, or requests to an API that were answered or may have been charged."""
    return any(path.is_file() and path.stat().st_size > 0 for path in (folder / RECORDS, folder / REPLIES))


def _records_of(folder: Path, items: Sequence[TaskItem], samples: int) -> list[EpisodeRecord]:
    """Return the records of these tasks.

    Raises:
        ConfigError: a task had other data when it was played.
    """
    path, data = folder / RECORDS, {item.id: json.loads(json.dumps(dict(item.data))) for item in items}
    if not path.is_file():
        return []
    records = [record for record in read_records(path) if record["task"] in data and record["sample"] < samples]
    differ = (one["task"] for one in records if not data[one["task"]].items() <= one["data"].items())
    if changed := next(differ, None):  # a game adds the seat
        raise ConfigError(
            f"{folder} holds episodes of task {changed!r} with other data than it has now. Choose another "
            "evaluation.output_dir, or restore the tasks."
        )
    return records
