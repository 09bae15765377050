"""One run of a study with the small model: plays, updates and evaluations until its turns are spent."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import torch

from verl_agent.config.algorithms import CRITICS
from verl_agent.config.settings import read_run_env
from verl_agent.errors import ConfigError
from verl_agent.rollout.settings import TokenBudget
from verl_agent.study.settings import DONE, POINTS, Study
from verl_agent.study.tiny.learner import Learner
from verl_agent.study.tiny.model import new_model
from verl_agent.study.tiny.playing import Plays, TinyPlayer
from verl_agent.study.tiny.warm_start import WarmStart, save_at_once
from verl_agent.trace.episode_summary import summarize_episode
from verl_agent.training.turn_limits import TurnLimits
from verl_agent.types import StopReason

CHECKPOINT = "checkpoint.pt"
"""State at the latest evaluation, while the run has not ended."""


@dataclass(frozen=True, slots=True)
class TinyRun:
    """One run: its folder, the file of the warm start of its seed, and the composed recipe in plain values."""

    folder: Path
    warm: Path
    config: Mapping[str, Any]
    study: Study
    seed: int

    def train(self) -> None:
        """Train to the end of the budget, or resume from the last evaluation."""
        torch.set_num_threads(1)
        self.folder.mkdir(parents=True, exist_ok=True)
        Training(self).to_the_end()
        (self.folder / CHECKPOINT).unlink(missing_ok=True)  # killed between the mark of the end and this


class Training:
    """State of a run."""

    def __init__(self, run: TinyRun) -> None:
        self._run, config, seed, settings = run, run.config, run.seed, run.study.tiny
        self._env = read_run_env(config)
        started = WarmStart.read(run.warm)
        torch.manual_seed(seed)
        self._policy = started.new_policy(settings)
        critic = config["algorithm"]["adv_estimator"] in CRITICS
        self._learner = Learner(
            config,
            self._env.credit,
            self._policy,
            new_model(started.words, settings, critic=True) if critic else None,
            started.new_policy(settings) if config["actor_rollout_ref"]["actor"]["use_kl_loss"] else None,
            seed,
        )
        data = config["data"]
        budget = TokenBudget.of(self._env.episode, data["max_prompt_length"], data["max_response_length"])
        self._player = TinyPlayer(self._env, started.words, budget, seed)
        self._train, held_out = (self._env.tasks(one) for one in (self._env.env.train_tasks, self._env.env.eval_tasks))
        self._later = self._env.tasks(settings.later_tasks) if settings.later_tasks else self._train
        self._held_out = Random(seed).sample(held_out, min(settings.eval_tasks, len(held_out)))
        self._turn_limits, self._luck = TurnLimits([self._env], seed), Random(seed)
        self._counts = {"step": 0, "turns": 0, "tokens": 0, "points": 0, "cpu_s": 0.0, "limit": 0}
        self._clock = time.process_time()

    def to_the_end(self) -> None:
        """Train, and evaluate at even distances."""
        run, counts, steps = self._run, self._counts, list[dict[str, float]]()
        if (run.folder / CHECKPOINT).is_file():
            self._restore(torch.load(run.folder / CHECKPOINT, weights_only=False))  # written by this class
        else:
            (run.folder / POINTS).unlink(missing_ok=True)
            self._evaluate({})
        while counts["turns"] < run.study.budget_turns:
            steps.append(self.step())
            if counts["turns"] >= run.study.budget_turns * counts["points"] / run.study.points:
                self._evaluate({name: sum(step[name] for step in steps) / len(steps) for name in steps[0]})
                steps = []
        (run.folder / DONE).write_text(json.dumps(counts) + "\n", encoding="utf-8")

    def step(self) -> dict[str, float]:
        """Play and train on one step, and return its measurements."""
        config, counts = self._run.config, self._counts
        counts["step"] += 1
        step = int(counts["step"])
        tasks = self._train if 2 * counts["turns"] < self._run.study.budget_turns else self._later
        items = self._luck.sample(tasks, config["data"]["train_batch_size"])
        limits = [self._turn_limits.max_turns(self._env.label, step, item) for item in items]
        max_turns = max(limits)
        if self._run.study.tiny.fresh_optimizer and max_turns != counts["limit"] > 0:
            self._learner.begin_stage()
        counts["limit"] = max_turns
        plays = self._play(items, config["actor_rollout_ref"]["rollout"]["n"], limits, step)
        measured = measurements(plays, config["episode"]["max_tokens_per_turn"])
        self._turn_limits.observe([summarize_episode(one) for one in plays.valid])
        counts["turns"] += plays.turns
        counts["tokens"] += measured.pop("tokens")
        measured["max_turns"] = fmean(one.max_turns for one in plays.valid)
        return {**measured, **self._learner.update(plays.rows, step)}

    def _play(self, items: list[Any], samples: int, turns: Sequence[int], step: int) -> Plays:
        limits = [self._env.limits(most) for most in turns]
        return self._player.play(self._policy, items, samples, limits, step)

    def _evaluate(self, measured: Mapping[str, float]) -> None:
        """Add a point, and write the state from which the run can resume."""
        counts, study, folder = self._counts, self._run.study, self._run.folder
        asked = self._env.horizon.turns_for_evaluation()
        beyond = study.tiny.beyond_turns if counts["turns"] >= study.budget_turns else None
        turns = [max(asked, beyond or 0)] * len(self._held_out)
        plays = self._play(self._held_out, study.tiny.eval_samples, turns, 0)
        now = time.process_time()
        counts["cpu_s"], self._clock = round(counts["cpu_s"] + now - self._clock, 3), now
        solved = [len(one.turns) for one in plays.episodes if one.success and len(one.turns) <= asked]
        point = {**counts, **measured, "success": solved_within(plays, asked)}
        if solved:
            point["turns_solved"] = sum(solved) / len(solved)
        if beyond:
            point["success_beyond"] = solved_within(plays, beyond)
        counts["points"] += 1
        with (folder / POINTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({name: round(value, 6) for name, value in point.items()}) + "\n")
        limits, luck = self._turn_limits.saved(), self._luck.getstate()
        save_at_once([self._learner.saved(), luck, limits, counts], folder / CHECKPOINT)

    def _restore(self, saved: list[Any]) -> None:
        learner, luck, limits, counts = saved
        self._learner.restore(learner)
        self._luck.setstate(luck)
        self._turn_limits.restore(limits)
        self._counts.update(counts)
        file = self._run.folder / POINTS
        lines = file.read_text(encoding="utf-8").splitlines()[: int(counts["points"])]
        if len(lines) < counts["points"]:
            raise ConfigError(
                f"{file} has {len(lines)} of {counts['points']} evaluations. Remove its folder; the next start plays "
                "the run again."
            )
        part = file.with_suffix(".part")
        part.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        part.replace(file)


def solved_within(plays: Plays, turns: int) -> float:
    """Return the share of valid episodes that were solved within a number of turns."""
    valid = plays.valid
    return sum(one.success and len(one.turns) <= turns for one in valid) / len(valid)


def measurements(plays: Plays, full: int) -> dict[str, float]:
    """Return the measurements of a step whose replies have at most `full` tokens; most are shares."""
    episodes = plays.valid
    turns = [turn for one in episodes for turn in one.turns]
    limited = [turn for one in episodes if one.stop is StopReason.TURN_LIMIT for turn in one.turns]
    tokens, all_turns = sum(one.reply.tokens for one in turns), max(1, len(turns))
    return {
        "train_success": sum(one.success for one in episodes) / len(episodes),
        "limited": sum(one.stop is StopReason.TURN_LIMIT for one in episodes) / len(episodes),
        "limited_tokens": sum(one.reply.tokens for one in limited) / max(1, tokens),
        "invalid": sum(one.info_total("invalid_action") for one in episodes) / all_turns,
        "full_replies": sum(one.reply.tokens >= full for one in turns) / all_turns,
        "turns_mean": len(turns) / len(episodes),
        "entropy": plays.entropy,
        "tokens": float(tokens),
    }
