"""Rows of one step of TextCraft as a small model plays it: the oracle's episodes with turns that lead nowhere."""

import asyncio
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from tests import ROOT
from verl_agent.agents.registry import make_agent
from verl_agent.config.search_path import register_config
from verl_agent.config.settings import agent_settings
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import select_tasks
from verl_agent.rollout.chat_template import choose_builder
from verl_agent.rollout.episode import EpisodeLimits, play
from verl_agent.rollout.oracle import OraclePolicy
from verl_agent.rollout.tokens import EpisodeTokens, Segment, render_episode
from verl_agent.types import DemoAction

RECIPES = ROOT / "recipes" / "textcraft"
SAMPLES = 4
MAX_TURNS = 6


def played_rows(model: Path, groups: int) -> list[Segment]:
    """Return the rows of some groups; sample k of a task begins with k looks at the inventory.

    Args:
        model: folder of the tokenizer.
        groups: number of tasks, each with `SAMPLES` rows.
    """
    register_config()
    with initialize_config_dir(str(RECIPES), version_base=None):
        config = compose("sft_cpu")
    env = make_env(config.env.name, OmegaConf.to_container(config.env.options))
    tokenizer = AutoTokenizer.from_pretrained(model)
    builder, settings = choose_builder(tokenizer, None, {}), agent_settings(config.data)
    rows = []
    for item in select_tasks(config.env.name, str(RECIPES / "cpu_train.txt"), config.env.options)[:groups]:
        for sample in range(SAMPLES):
            agent = make_agent(settings, env.action_format)
            policy = OraclePolicy(agent, [DemoAction("inventory")] * sample + list(env.demonstration(item)))
            episode = asyncio.run(play(item, env.new_session(), agent, policy, EpisodeLimits(MAX_TURNS)))
            tokens = EpisodeTokens(builder, tokenizer.eos_token_id, agent.tools)
            rows += render_episode(tokens, tokenizer, make_agent(settings, env.action_format), episode)
    return rows
