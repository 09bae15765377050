"""Validation by playing: an evaluation recipe plays the saved checkpoints of supervised training or DPO."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from verl_agent.config.composing import resolved
from verl_agent.config.plan import OfflinePlan
from verl_agent.config.settings import AgentEnv, read_env
from verl_agent.envs.tasks import check_disjoint
from verl_agent.errors import ConfigError, counted
from verl_agent.json_lines import remove_unfinished_line
from verl_agent.results.folder import REPORT
from verl_agent.runs.folder import RunFolder
from verl_agent.runs.subprocess_run import recipe_command, run_command
from verl_agent.sections import section, settings
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.provenance import read_json
from verl_agent.training.offline.selection import NamedTask

FOLDER, LOG = "play", "play.jsonl"
"""Folder of the evaluations in that of a run, and log of their results beside the metrics."""
RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DIST_INIT_METHOD")
"""Variables of this process's group, which an engine would take for its own."""
MEASURED = ("tasks", "max_tasks", "max_tasks_per_category", "samples", "temperature", "top_p", "seed", "perturb")
"""Settings of section `evaluation` on which the results depend."""


@settings("trainer", base="agent_sft")
class PlaySettings:
    """Key of verl's section `trainer` that this package adds to supervised training and DPO."""

    play: str | None = None
    """Evaluation recipe that plays each saved checkpoint, so every `trainer.save_freq` steps; its success chooses
    `best/`. Null to play none."""


@settings("trainer", base="agent_dpo")
class PreferencePlaySettings(PlaySettings):
    """The same key for DPO."""


def check_play(plan: OfflinePlan, recorded: Collection[NamedTask]) -> Mapping[str, Any]:
    """Check the recipe that plays, and return the settings on which its results depend; empty without one.

    Its `env.options` may be others than those of the training: they define what is measured.

    Args:
        recorded: tasks of the recorded episodes that are trained on.

    Raises:
        ConfigError: it does not compose, prompts the model in another way, plays tasks that are trained on, or no
            checkpoint could be played.
    """
    from verl_agent.training.offline.evolve.prepare import compose_named, differing_agents

    played = section("trainer", PlaySettings, {"play": plan.value("trainer.play")})
    if played.play is None:
        return {}
    recipe = resolved(
        compose_named(played.play, "trainer.play", "agent_eval"), ("env", "agent", "horizon", "evaluation")
    )
    player, learned = read_env(recipe), plan.played
    if player.agent != learned.agent:
        other, own = differing_agents(player.agent, learned.agent)
        raise ConfigError(
            f"trainer.play={played.play!r} prompts the model differently: it has {other}, and this recipe {own}. Use "
            "the same in both."
        )
    _check_not_learned(player, str(recipe["evaluation"]["tasks"]), plan, recorded)
    saved = list(plan.actor.checkpoint["save_contents"])
    if "hf_model" not in saved:
        raise ConfigError(
            f"trainer.play={played.play!r} plays the model of a checkpoint, and checkpoint.save_contents={saved} lacks "
            "hf_model. Add it."
        )
    measured = {name: recipe["evaluation"].get(name) for name in MEASURED}
    env = {name: recipe["env"].get(name) for name in ("name", "options")}
    return {"played": {"env": env, "agent": recipe["agent"], "horizon": recipe["horizon"], **measured}}


def _check_not_learned(player: AgentEnv, tasks: str, plan: OfflinePlan, recorded: Collection[NamedTask]) -> None:
    """Check that no played task is trained on, by its own name or by episodes that were recorded of it."""
    learned, played = plan.played, player.tasks(tasks)
    if player.env.name == learned.env.name and not plan.has_pairs:
        sources = {"env.train_tasks": learned.env.train_tasks, "tasks of trainer.play": tasks}
        check_disjoint(learned.tasks(learned.env.train_tasks), played, sources)
    if shared := sorted(item.id for item in played if (item.env, item.id) in recorded):
        key = "preference.records" if plan.has_pairs else "episodes.records"
        raise ConfigError(
            f"trainer.play={plan.value('trainer.play')!r} plays {counted(len(shared), 'task')} of evaluation.tasks="
            f"{tasks!r} that {key} trains on, such as {shared[0]!r}. Set evaluation.tasks of the recipe to others, or "
            f"leave their episodes out of {key}."
        )


class CheckpointPlayer:
    """Plays the checkpoints of a run, each in an evaluation of its own that resumes.

    Args:
        recipe: evaluation recipe.
        run: folder of the run.
    """

    def __init__(self, recipe: str, run: Path) -> None:
        self._recipe, self._run = Path(recipe).resolve(), run

    def play(self, step: int) -> None:
        """Play the checkpoint of a step, and log success and return as the validation of that step.

        A step that was played before is not played again.

        Raises:
            ConfigError: the evaluation fails. It resumes when the run does.
        """
        log = self._run / "metrics" / LOG
        if step in (read_metrics(log) if log.is_file() else {}):
            return
        into = self._run / FOLDER / f"step_{step}"
        values = {"model.path": str(self._run / f"global_step_{step}"), "evaluation.output_dir": str(into)}
        if code := run_command(recipe_command("evaluate", self._recipe, values=values), without=RANK):
            raise ConfigError(
                f"trainer.play={str(self._recipe)!r} ended with status {code} at step {step}. Errors are in the "
                f"log of the run and in {into}. Fix them and run the same command again."
            )
        log.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished_line(log)
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "data": play_metrics(into)}) + "\n")


def play_metrics(folder: Path) -> dict[str, float]:
    """Return success and return of an evaluation, with the names that verl gives to those of a validation.

    Raises:
        ConfigError: no episode is valid.
    """
    report = read_json(folder / REPORT, "Delete the folder; the checkpoint is played again.", ("results", "config"))
    overall = report["results"][-1] if report["results"] else {}
    if not overall.get("success"):
        raise ConfigError(f"the evaluation in {folder} has no valid episode. Its log names the errors.")
    source, samples = report["config"]["env"]["name"], report["config"]["evaluation"]["samples"]
    metrics = {f"val-aux/{source}/success/mean@{samples}": float(overall["success"]["mean"])}
    if overall.get("mean_return"):
        metrics[f"val-core/{source}/reward/mean@{samples}"] = float(overall["mean_return"]["mean"])
    return metrics


def player_of(plan: OfflinePlan) -> CheckpointPlayer | None:
    """Return the player of a run's checkpoints; None if the recipe names none."""
    recipe = plan.value("trainer.play")
    return None if recipe is None else CheckpointPlayer(str(recipe), RunFolder.at(plan.schedule.folder).root)
