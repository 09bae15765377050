"""Run of reinforcement learning: claim its folder, hand its plan to verl and follow it to the last step."""

import os

from typing_extensions import override

from verl_agent.config.plan import RunPlan, running
from verl_agent.envs.tasks import task_contents, task_ids
from verl_agent.errors import ConfigError
from verl_agent.evaluation.recorded_play import play_of_training
from verl_agent.runs.child import Link
from verl_agent.runs.identity import TASK_CONTENTS, TASK_IDS, read_settings
from verl_agent.runs.processes import ending_all_children
from verl_agent.system.compiler import compilation_variables
from verl_agent.system.gpus import read_gpus
from verl_agent.system.resources import most_checkpoints, spell_gb
from verl_agent.training.follow import finish, follow_run
from verl_agent.training.job import TrainingJob
from verl_agent.training.preflight.estimates import CARD_GB, estimate_footprint
from verl_agent.training.preflight.machine import describe_attention, describe_step, needed_gb, shapes_of
from verl_agent.training.preflight.oracle_lengths import mean_episode
from verl_agent.training.preflight.ranks import check_resumed_ranks
from verl_agent.training.preflight.rl import check_plan, choose_dev_tasks
from verl_agent.training.splits import split_tasks
from verl_agent.training.verl_config import environment, identity, ray_variables, to_verl


class ReinforcementLearning(TrainingJob):
    """Training by reinforcement learning with verl.

    Args:
        plan: plan of the run.
        link: connection to the supervisor; None without one.
    """

    command, model_key = "train", "actor_rollout_ref.model.path"

    def __init__(self, plan: RunPlan, link: Link | None = None) -> None:
        super().__init__(plan)
        self.plan, self.link, self.steps = plan, link, int(plan.schedule.steps or 0)

    @override
    def check(self) -> None:
        super().check()
        resumes = self.folder.last_step and self.schedule.resume != "disable"
        earlier = read_settings(self.folder.root) if resumes else {}
        self.plan = plan = check_plan(choose_dev_tasks(self.plan, earlier, self.tell), self.tell)
        self.variables = {**compilation_variables(self.tell), **ray_variables(plan)} if plan.on_cpu else {}
        train = [item for splits in split_tasks(plan.envs) for item in splits.train]
        tasks = {TASK_IDS: task_ids(train), TASK_CONTENTS: task_contents(train)}
        rubrics = {one.label: one.judge.identity()["rubric"] for one in plan.envs if one.judge.rubric is not None}
        self.settings = {"command": self.command, **identity(plan), **tasks}
        self.settings |= {"rubrics": rubrics} if rubrics else {}
        self.checkpoint_gb = needed_gb(plan)[1]

    @override
    def claim(self) -> bool:
        done = super().claim()
        play_of_training(self.plan).write(self.folder.root)
        return done

    @override
    def is_done(self) -> bool:
        return self.folder.finished(self.steps)

    @override
    def resharded(self) -> list[str]:
        return check_resumed_ranks(self.folder.checkpoint, self.plan.trained, self.plan.layout)

    @override
    def require_room(self) -> None:
        super().require_room()
        self._show_estimate()

    def _show_estimate(self) -> None:
        """Print the memory, disk and time that the run needs, and warn if that is more than the GPUs have."""
        shape, critic = shapes_of(self.plan)
        if self.plan.on_cpu:
            disk = spell_gb(self.checkpoint_gb * most_checkpoints(self.schedule.keep))
            episode = None if self.step else mean_episode(self.plan)  # plays, so not again at each resume
            step = f"; {describe_step(self.plan, shape, critic, episode)}" if shape else ""
            self.tell(f"estimated: {needed_gb(self.plan)[0]:.0f} GB of memory, {disk} of disk{step}")
            return
        if shape is None:
            return
        memory_mib = read_gpus().memory_mib  # not asked from torch, which would start CUDA in this process
        card_gb = memory_mib * 2**20 / 1e9 if memory_mib else CARD_GB
        needed = estimate_footprint(self.plan, shape, critic, card_gb)
        self.tell(str(needed))
        self.tell(describe_attention(self.plan.actor))
        if needed.peak_gb > card_gb:
            self.tell(
                (f"That is more than the {card_gb:.0f} GB of a GPU.", "yellow"),
                " To need less, set offload=true, add "
                "+overlay/lora=rank_32, lower actor_rollout_ref.rollout.gpu_memory_utilization, or use more GPUs.",
            )

    @override
    def work(self) -> None:
        """Hand the plan to verl, in this process and the Ray processes that it starts.

        From here on verl calls us, by names in `config/agent_base.yaml` and `agent_loop.yaml`: `TaskDataset` (tasks),
        `EpisodeLoopManager` and `EpisodeLoop` (episodes to rows), `EpisodeSampler` (rows to a batch), and the trainers
        that `EpisodeRunner` registers (turn limits, advantages). Estimators and losses are in verl's registries.

        Raises:
            ConfigError: verl rejects the config.
        """
        with (
            ending_all_children() as before_end,
            follow_run(self.folder, self.steps, self.schedule.keep, self.console),
        ):
            self.folder.metrics.parent.mkdir(parents=True, exist_ok=True)
            log = {"VERL_FILE_LOGGER_PATH": str(self.folder.metrics)}
            variables = environment(to_verl(self.plan, self.step, {**self.variables, **log}))
            os.environ.update(variables)
            from verl_agent.platform.plugin import require_plugin  # importing it imports verl

            config = to_verl(self.plan, self.step, {**variables, "VERL_PLATFORM": require_plugin()})
            import ray
            from verl.trainer.main_ppo import run_ppo
            from verl.trainer.ppo.utils import need_critic
            from verl.utils.config import validate_config

            try:
                validate_config(config, self.plan.estimation.has_reference, need_critic(config))
            except (AssertionError, ValueError) as error:
                raise ConfigError(f"verl rejects the config: {error}") from error
            from verl_agent.training.actor_watch import watch_actors
            from verl_agent.training.cluster import DriverRunner, EpisodeRunner, join_cluster

            # On GPUs the driver may be on a machine that has none.
            runner = DriverRunner if self.plan.on_cpu else ray.remote(EpisodeRunner)
            try:
                join_cluster(self.plan, config)
                with running(self.plan), watch_actors(self.link):
                    run_ppo(config, runner)
            finally:
                before_end()
                ray.shutdown()

    @override
    def report(self, ended: bool) -> None:
        finish(self.folder, [one.env for one in self.plan.envs], self.console)
