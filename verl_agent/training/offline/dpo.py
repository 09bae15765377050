"""Preference learning (DPO) on pairs of recorded episodes."""

from omegaconf import DictConfig, OmegaConf

from verl_agent.agents.registry import make_agent
from verl_agent.config.settings import agent_settings, env_options
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import select_tasks
from verl_agent.errors import ConfigError
from verl_agent.sections import section
from verl_agent.trace.metrics_log import LoggedStep
from verl_agent.training.offline.preferences import PreferenceSettings, first, make_pairs, pairable_records, split_pairs
from verl_agent.training.offline.run import Method, RunPlan
from verl_agent.training.offline.run import run as run_method
from verl_agent.training.offline.selection import fingerprint


def plan(config: DictConfig) -> RunPlan:
    """Check the environment and pair the recorded episodes.

    Raises:
        ConfigError: a setting is not allowed, or the records give no pair of this environment.
    """
    settings: PreferenceSettings = section("preference", PreferenceSettings, OmegaConf.to_container(config.preference))
    options = env_options(config)
    held_out = select_tasks(config.env.name, config.env.eval_tasks, options)
    tasks = frozenset((item.env, item.id) for item in held_out)
    records = pairable_records(settings, tasks)
    played = {record["env"] for record in records}
    if config.env.name not in played:
        raise ConfigError(
            f"preference.records={settings.records!r} has episodes of {', '.join(sorted(played))}, but this recipe is "
            f"for env.name={config.env.name!r}. Set preference.records to episodes of it, or choose another recipe."
        )
    train, validation = split_pairs(make_pairs(records, settings), settings.val_share)
    train, validation = first(train, config.data.train_max_samples), first(validation, config.data.val_max_samples)
    agent = agent_settings(config)
    if make_agent(agent, make_env(config.env.name, options).action_format).context.edits:
        raise ConfigError(
            f"agent.context.keep={agent.context.get('keep')!r} splits an episode into several samples, and a pair "
            "needs one of each side. Play and train with agent.context.keep=all."
        )
    if config.data.use_dynamic_bsz and 2 * config.data.max_length > config.data.max_token_len_per_gpu:
        raise ConfigError(
            f"data.max_token_len_per_gpu={config.data.max_token_len_per_gpu} must hold both episodes of a pair: at "
            f"least twice data.max_length={config.data.max_length}."
        )
    if bool(config.data.val_files) != bool(settings.val_share):
        raise ConfigError(
            f"preference.val_share={settings.val_share:g} and data.val_files={config.data.val_files!r} contradict each "
            "other. To validate, set a share above 0 and data.val_files=validation; otherwise set 0 and null."
        )
    return RunPlan(
        rows=len(train),
        val_rows=len(validation),
        facts={"pairs": fingerprint([pair.fingerprint for pair in train])},
        summary=f"{len(train)} pairs of {len({pair.task for pair in train})} tasks of {', '.join(sorted(played))}, "
        f"{len(validation)} to validate on",
    )


def trainer() -> type:
    """Import verl and return the class of the trainer."""
    from verl_agent.training.offline.dpo_trainer import PreferenceTrainer

    return PreferenceTrainer


def state(logged: LoggedStep) -> str:
    """Format a logged step for the progress bar."""
    values = logged.values
    return f"loss {values['train/loss']:.3f}, margin {values.get('train/margin', 0.0):.2f}"


DPO = Method("dpo", "agent_dpo", "preference learning", plan, trainer, state)


def run(config: DictConfig) -> None:
    """Train on pairs; see `verl_agent.training.offline.run.run`."""
    run_method(config, DPO)
