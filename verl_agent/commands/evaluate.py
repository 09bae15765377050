"""Command `verl-agent eval`: measure a model, an oracle or any other policy on tasks of an environment.

Runs as `python -m verl_agent.commands.evaluate --config-dir recipes/<env> --config-name eval model.path=<model>`.
"""

import sys

from omegaconf import DictConfig

from verl_agent.commands.hydra_main import run_recipe
from verl_agent.errors import ConfigError
from verl_agent.evaluation.job import prepare_evaluation
from verl_agent.evaluation.run import report_results, run_evaluation
from verl_agent.results.folder import LOG
from verl_agent.runs.console import errors_in, explaining_full_disk, redirect_output
from verl_agent.runs.processes import Terminated
from verl_agent.terminal import say


def run(config: DictConfig) -> None:
    """Evaluate, show the results and write them; an interrupted or failed evaluation reports what it has played.

    After SIGTERM only one line is shown: the results of 33,000 episodes take longer than whoever sent it waits.

    Raises:
        ConfigError: a setting is not allowed, or too many environments failed.
    """
    evaluation = prepare_evaluation(config)
    log = evaluation.folder / LOG
    with redirect_output(log) as console:
        try:
            with explaining_full_disk(evaluation.folder):
                run_evaluation(evaluation, console)
        except (KeyboardInterrupt, ConfigError):
            advice = f"Stopped. To resume, run the same command with evaluation.output_dir={evaluation.folder}"
            say(console, advice)
            raise
        except (RuntimeError, ValueError, OSError):  # raised by vLLM for a model or machine that it cannot serve
            say(console, ("The evaluation failed.", "red"), f" Errors in {log}:")
            say(console, errors_in(log))
            raise
        finally:
            if not isinstance(sys.exception(), Terminated):
                report_results(evaluation, console)


if __name__ == "__main__":
    run_recipe(run, "agent_eval")
