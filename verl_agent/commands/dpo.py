"""Learn from pairs of episodes: `python -m verl_agent.commands.dpo --config-dir DIR --config-name RECIPE`."""

import hydra
from omegaconf import DictConfig, OmegaConf

from verl_agent.agents.registry import make_agent
from verl_agent.commands.hydra_main import launch
from verl_agent.config.settings import agent_settings, env_options
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import select_tasks
from verl_agent.errors import ConfigError
from verl_agent.offline.preferences import PreferenceSettings, first, make_pairs, split_pairs
from verl_agent.offline.run import Method, Plan
from verl_agent.offline.run import run as run_method
from verl_agent.offline.selection import fingerprint, usable_records
from verl_agent.runs.console import exit_with
from verl_agent.runs.folder import DPO_IDENTITY, identity
from verl_agent.sections import section
from verl_agent.trace.metrics_log import LoggedStep


def plan(config: DictConfig) -> Plan:
    """Check the environment and pair the recorded episodes.

    Raises:
        ConfigError: they do not allow the run.
    """
    settings: PreferenceSettings = section("preference", PreferenceSettings, OmegaConf.to_container(config.preference))
    options = env_options(config)
    held_out = select_tasks(config.env.name, config.env.eval_tasks, options)
    records = usable_records(
        settings.records, "preference.records", frozenset((item.env, item.id) for item in held_out)
    )
    played = {record["env"] for record in records}
    if config.env.name not in played:
        raise ConfigError(
            f"preference.records={settings.records!r} are of {', '.join(sorted(played))}, and this recipe is for "
            f"env.name={config.env.name!r}. Name records of it, or another recipe."
        )
    train, validation = split_pairs(make_pairs(records, settings), settings.val_share)
    train, validation = first(train, config.data.train_max_samples), first(validation, config.data.val_max_samples)
    words = agent_settings(config)
    if make_agent(words, make_env(config.env.name, options).action_format).context.edits:
        raise ConfigError(
            f"agent.context.keep={words.context.get('keep')!r} makes several samples of an episode, and a pair needs "
            "one of each side. Play and learn with agent.context.keep=all."
        )
    if config.data.use_dynamic_bsz and 2 * config.data.max_length > config.data.max_token_len_per_gpu:
        raise ConfigError(
            f"data.max_token_len_per_gpu={config.data.max_token_len_per_gpu} must hold both episodes of a pair: at "
            f"least twice data.max_length={config.data.max_length}."
        )
    if bool(config.data.val_files) != bool(settings.val_share):
        raise ConfigError(
            f"preference.val_share={settings.val_share:g} and data.val_files={config.data.val_files!r} contradict each "
            "other. Validate with a share above 0 and data.val_files=validation, or not, with 0 and null."
        )
    facts = identity(OmegaConf.to_container(config), DPO_IDENTITY, [])
    return Plan(
        rows=len(train),
        val_rows=len(validation),
        identity={"command": "dpo", **facts, "pairs": fingerprint([pair.fingerprint for pair in train])},
        summary=f"{len(train)} pairs of {len({pair.task for pair in train})} tasks of {', '.join(sorted(played))}, "
        f"{len(validation)} to validate on",
    )


def trainer() -> type:
    """The trainer's class."""
    from verl_agent.offline.dpo_trainer import PreferenceTrainer

    return PreferenceTrainer


def state(logged: LoggedStep) -> str:
    """What is shown of a step."""
    values = logged.values
    return f"loss {values['train/loss']:.3f}, margin {values.get('train/margin', 0.0):.2f}"


DPO = Method("agent_dpo", "preference learning", plan, trainer, state)


def run(config: DictConfig) -> None:
    """Train to the end of a composed recipe, or go on from its last checkpoint.

    Raises:
        ConfigError: the run must not start.
    """
    run_method(config, DPO)


@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config: DictConfig) -> None:
    """Entry point of `python -m verl_agent.commands.dpo`."""
    exit_with(run, config)


if __name__ == "__main__":
    launch(main, "agent_dpo")
