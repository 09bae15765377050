"""Measure a model: `python -m verl_agent.commands.evaluate --config-dir recipes/<env> --config-name eval model.path=<model>`."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import hydra
from omegaconf import DictConfig
from rich.console import Console

from verl_agent.agents.registry import make_agent
from verl_agent.commands.hydra_main import launch
from verl_agent.config.keys import check_keys, check_kind
from verl_agent.envs.hosts.local import local_pool
from verl_agent.envs.registry import make_env
from verl_agent.envs.session import PooledEnv
from verl_agent.evaluation.job import LOG, RECORDS, Evaluation, prepare_evaluation, report
from verl_agent.evaluation.loop import EvaluationSetup, play_all
from verl_agent.evaluation.progress import EvaluationProgress
from verl_agent.models.hf import load_config, load_tokenizer
from verl_agent.preflight.rl import worker_environment
from verl_agent.rollout.episode import EpisodeLimits, Policy
from verl_agent.rollout.oracle import ORACLE, oracle_policy
from verl_agent.runs.console import exit_with, last_errors, redirect_output
from verl_agent.runs.processes import ending_all_children
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.types import TaskItem

NewPolicy: TypeAlias = Callable[[TaskItem, int], Policy]
"""Makes the policy of one episode from its task and its seed."""


def run(config: DictConfig) -> None:
    """Evaluate, show the results and write them; what was played is reported however it ends.

    Raises:
        ConfigError: the config does not allow it, or too many environments failed.
    """
    check_kind(config, "agent_eval")
    check_keys(config, "agent_eval")
    job = prepare_evaluation(config)
    with redirect_output(job.folder / LOG) as console:
        try:
            if job.slots:
                os.environ |= worker_environment(job.folder)
                with ending_all_children():
                    asyncio.run(play(job, console))
        except KeyboardInterrupt:
            console.print("Stopped. To go on, run the same command with this output folder:")
            console.print(f"  evaluation.output_dir={job.folder}", markup=False, soft_wrap=True)
            raise
        except (RuntimeError, ValueError, OSError):  # what vLLM says of a model or a machine that it cannot serve
            console.print(f"[red]The evaluation failed.[/] What {job.folder / LOG} says:")
            console.print(last_errors(job.folder / LOG), markup=False, highlight=False)
            raise
        finally:
            report(job, console)


async def play(job: Evaluation, console: Console) -> None:
    """Start what replies, and play what is still to be played."""
    config, slots = job.config, job.slots
    settings, evaluation = config.agent.env, config.evaluation
    env = make_env(settings.name, settings.options)
    console.print(f"starting {job.model}; {len(slots)} episodes to play", markup=False, soft_wrap=True)
    pool = local_pool(env, settings)
    with started(job) as new_policy, EpisodeWriter(job.folder / RECORDS) as writer:
        setup = EvaluationSetup(
            new_env=lambda: PooledEnv(env, pool),
            new_agent=partial(make_agent, config.agent.agent, env.action_format),
            new_policy=new_policy,
            limits=EpisodeLimits(config.agent.horizon.turns_for_evaluation(), None, settings.retries),
            tasks=evaluation.tasks,
            model=job.model,
            seed=evaluation.seed,
            concurrency=evaluation.concurrency,
            max_env_error_rate=settings.max_env_error_rate,
            purpose="collection" if evaluation.purpose == "collection" else "evaluation",
        )
        with EvaluationProgress(console, job.planned, job.planned - len(slots)) as progress:
            try:
                await play_all(slots, setup, writer, progress.add)
            finally:
                await pool.shutdown()


@contextmanager
def started(job: Evaluation) -> Iterator[NewPolicy]:
    """What makes the policy of one episode, with an engine behind it if a model plays."""
    if job.model == ORACLE:
        settings = job.config.agent
        env = make_env(settings.env.name, settings.env.options)
        yield lambda item, seed: oracle_policy(item, env, make_agent(settings.agent, env.action_format))
        return
    from verl_agent.evaluation.vllm_engine import VllmEngine

    data = job.config.data
    with VllmEngine(job.model, job.config.engine, data.max_prompt_length + data.max_response_length) as engine:
        yield policies(job, engine)


def policies(job: Evaluation, engine: Any) -> NewPolicy:
    """Makes the policy of one episode from its seed; the token side of training, with the evaluation's sampling."""
    from verl_agent.rollout.chat_template import check_tools, choose_builder
    from verl_agent.rollout.policy import EnginePolicy, TokenBudget
    from verl_agent.rollout.tokens import EpisodeTokens

    data, episode, evaluation = job.config.data, job.config.agent.episode, job.config.evaluation
    tokenizer = load_tokenizer(job.model, "model.path")
    model_type = load_config(job.model, "model.path").model_type
    builder = choose_builder(tokenizer, model_type, data.apply_chat_template_kwargs)
    env = make_env(job.config.agent.env.name, job.config.agent.env.options)
    tools = make_agent(job.config.agent.agent, env.action_format).tools
    if tools:
        check_tools(tokenizer, builder, tools, data.apply_chat_template_kwargs)
    budget = TokenBudget(
        data.max_prompt_length,
        data.max_response_length,
        episode.max_tokens_per_turn,
        episode.on_truncated_turn == "play",
    )
    end_of_turn = tokenizer.eos_token_id

    def new_policy(item: TaskItem, seed: int) -> EnginePolicy:
        sampling = {"temperature": evaluation.temperature, "top_p": evaluation.top_p, "seed": seed}
        tokens = EpisodeTokens(builder, end_of_turn, tools)
        return EnginePolicy(engine, tokenizer, tokens, budget, sampling, frozenset({end_of_turn}))

    return new_policy


@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config: DictConfig) -> None:
    """Entry point of `python -m verl_agent.commands.evaluate`."""
    exit_with(run, config)


if __name__ == "__main__":
    launch(main, "agent_eval")
