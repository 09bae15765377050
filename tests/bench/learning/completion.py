"""Train command whose mini-batches keep verl's order of rows, that of completion; arm of the study `order`."""

from omegaconf import DictConfig

from verl_agent.commands.hydra_main import launch
from verl_agent.commands.train import main
from verl_agent.training import runner


class CompletionRunner(runner.EpisodeRunner):
    """Runner of another trainer. The product has no setting for it."""

    def run(self, config: DictConfig) -> None:
        """Train until the end of `config`."""
        from verl.trainer.main_ppo import TaskRunnerV1
        from verl.trainer.ppo.v1 import register_trainer
        from verl.trainer.ppo.v1.trainer_base import PPOTrainer

        from verl_agent.training.trainer import EpisodeTrainer

        @register_trainer("completion")
        class CompletionTrainer(EpisodeTrainer):
            """`EpisodeTrainer` with the order of verl's trainer."""

            _balance_batch = PPOTrainer._balance_batch

        config.trainer.v1.trainer_mode = "completion"
        TaskRunnerV1.__ray_metadata__.modified_class().run(config)


if __name__ == "__main__":
    runner.EpisodeRunner = CompletionRunner  # type: ignore[misc]  # `verl_agent.training.run` imports it at the start
    launch(main, "agent_base")
