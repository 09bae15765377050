"""Rows of one step of TextCraft as a small model plays it: the oracle's episodes with turns that lead nowhere."""

import asyncio
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from tests import ROOT
from verl_agent.config.search_path import register_config
from verl_agent.config.settings import read_env
from verl_agent.rollout.chat_template import choose_builder
from verl_agent.rollout.episode import EpisodeLimits, play_episode
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
    played = read_env({name: OmegaConf.to_container(config[name]) for name in ("env", "agent")})
    tokenizer = AutoTokenizer.from_pretrained(model)
    builder, rows = choose_builder(tokenizer, None, {}), []
    for item in played.tasks(str(RECIPES / "cpu_train.txt"))[:groups]:
        for sample in range(SAMPLES):
            agent = played.new_agent()
            policy = OraclePolicy(agent, [DemoAction("inventory")] * sample + list(played.live.demonstration(item)))
            episode = asyncio.run(
                play_episode(item, played.live.new_session(), agent, policy, EpisodeLimits(MAX_TURNS))
            )
            tokens = EpisodeTokens(builder, tokenizer.eos_token_id, agent.tools)
            rows += render_episode(tokens, tokenizer, played.new_agent(), episode)
    return rows
