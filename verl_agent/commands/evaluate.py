"""Command `verl-agent eval`: measure a model, an oracle or any other policy on tasks of an environment.

Runs as `python -m verl_agent.commands.evaluate --config-dir recipes/<env> --config-name eval model.path=<model>`.
"""

import hydra
from omegaconf import DictConfig

from verl_agent.commands.hydra_main import launch
from verl_agent.config.keys import check_keys, check_kind
from verl_agent.errors import ConfigError
from verl_agent.evaluation.folder import LOG
from verl_agent.evaluation.job import prepare_evaluation
from verl_agent.evaluation.run import report, run_evaluation
from verl_agent.runs.console import exit_with, explaining_full_disk, last_errors, redirect_output


def run(config: DictConfig) -> None:
    """Evaluate, show the results and write them; an interrupted or failed evaluation reports what it has played.

    Raises:
        ConfigError: a setting is not allowed, or too many environments failed.
    """
    check_kind(config, "agent_eval")
    check_keys(config, "agent_eval")
    evaluation = prepare_evaluation(config)
    log = evaluation.folder / LOG
    with redirect_output(log) as console:
        try:
            with explaining_full_disk(evaluation.folder):
                run_evaluation(evaluation, console)
        except (KeyboardInterrupt, ConfigError):
            console.print("Stopped. To resume, run the same command with this output folder:")
            console.print(f"  evaluation.output_dir={evaluation.folder}", markup=False, soft_wrap=True)
            raise
        except (RuntimeError, ValueError, OSError):  # raised by vLLM for a model or machine that it cannot serve
            console.print(f"[red]The evaluation failed.[/] Last errors in {log}:")
            console.print(last_errors(log), markup=False, highlight=False)
            raise
        finally:
            report(evaluation, console)


@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config: DictConfig) -> None:
    """Entry point of `python -m verl_agent.commands.evaluate`."""
    exit_with(run, config)


if __name__ == "__main__":
    launch(main, "agent_eval")
