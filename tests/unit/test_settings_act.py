"""Test that code reads every key of verl's YAML that a recipe may set, and every key that files of this project set.

tests/support/config_reads.py finds the reads in verl's source and own_reads.py those of this package. Both state the
limits of this proof. Tests of losses, estimators and engines show what a key does.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.composing import COMMON, RECIPES, ROOT, SHARED, kind, written_in
from tests.support.config_reads import references, verl_reads
from tests.support.own_reads import is_read
from verl_agent.config.keys import FREE, leaves, reference
from verl_agent.config.unread import UNREAD, UNREAD_WITH_FSDP, remedy

OWN = ("env.", "agent.", "horizon.", "episode.", "credit.", "data.env_", "data.custom_cls.", "evaluation.", "evolve.")
OWN += ("episodes.", "preference.", "data.agent", "data.episodes", "data.preference", "data.model_type", "data.max_len")
OWN += ("data.overlong_prompt", "trainer.hang_timeout_s", "trainer.max_restarts", "trainer.test_best")
OWN += ("trainer.v1.sampler.sampler_kwargs.",)
"""Sections that this package reads."""
OTHER_ENGINES = ("megatron", "veomni", "torchtitan", "mindspeed", "qat", "turbo_config", "disaggregation", "trtllm")
ASIDE = (
    "profiler",
    "global_profiler",
    "skip",
    "distillation",
    "reward",
    "reward_model",
    "ray_kwargs",
    "transfer_queue",
    "mtp",
)
"""Sections of verl for debugging, sections handed on whole, and those of reward models and teachers (not used)."""
HANDED_ON = {
    "actor_rollout_ref.actor.fsdp_config.wrap_policy.": "utils/fsdp_utils.py:106",
    "actor_rollout_ref.ref.fsdp_config.wrap_policy.": "utils/fsdp_utils.py:106",
    "critic.fsdp.wrap_policy.": "utils/fsdp_utils.py:106",
    "actor_rollout_ref.rollout.engine_kwargs.": "workers/rollout/vllm_rollout/vllm_async_server.py:287",
    "actor_rollout_ref.rollout.prometheus.": "workers/rollout/utils.py",
    "actor_rollout_ref.actor.optim.warmup_style": "workers/config/optimizer.py:117, renamed to lr_scheduler_type",
    "critic.optim.warmup_style": "workers/config/optimizer.py:117, renamed to lr_scheduler_type",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size": "workers/config/actor.py, FSDPActorConfig.__post_init__",
    "actor_rollout_ref.ref.ulysses_sequence_parallel_size": "workers/config/actor.py, FSDPActorConfig.__post_init__",
    "actor_rollout_ref.ref.strategy": "workers/config/actor.py, FSDPActorConfig.__post_init__",
    "critic.strategy": "workers/config/critic.py, FSDPCriticConfig.__post_init__",
    "data.custom_cls.": "utils/dataset/rl_dataset.py, get_dataset_class",
    "data.env_tasks.": "verl_agent/training/dataset.py, _settings, which makes a section env of it",
    "model_engine": "trainer/config/ppo_trainer.yaml, chooses the engine's YAML",
    "trainer.v1.sync": "trainer/ppo/v1/trainer_base.py:163, empty",
    "trainer.v1.separate_async.hybrid_rollout.": "trainer/ppo/v1/trainer_separate_async.py, HybridRolloutSwitchConfig",
}
"""Keys that reach their reader in a way that the search of the source does not follow, and the line that reads them."""


WITHOUT_EFFECT = {
    "actor_rollout_ref.model.lora.rank": "the trainer takes the policy for its own reference, and FSDP adds no adapter",
    "actor_rollout_ref.rollout.multi_turn.tool_config_path": "verl's own agent loops alone use the tools",
    "actor_rollout_ref.rollout.multi_turn.function_tool_path": "verl's own agent loops alone use the tools",
}
"""Keys that verl reads and that have no effect with this package."""
IN_CHECK_UPDATE = {"algorithm.rollout_correction.loss_type", "actor_rollout_ref.actor.clip_ratio"}
"""Keys that `check_update` refuses; test_update_settings.py tests it."""


def read_keys(base: str) -> set[str]:
    """Return the keys of a base YAML that verl reads, itself or through a key whose value refers to them."""
    reads, values = verl_reads(base), dict(leaves(reference(base)))
    found = {key for key in values if key in reads or key.startswith(tuple(HANDED_ON))}
    found |= {key for key in reads if key not in values}  # sections, and keys that the YAML does not list
    waiting = [key for key in values if key in found]
    while waiting:
        for name in references(key := waiting.pop(), values[key]) - found:
            found.add(name)
            waiting += [name] if name in values else []
    return found


def verl_keys() -> Mapping[str, object]:
    """Return the keys of verl's YAML with FSDP, without sections that are set aside."""
    skipped = {*OTHER_ENGINES, *ASIDE, "hydra", "_target_"}
    return {
        key: value
        for key, value in leaves(reference("agent_base"))
        if not skipped & set(key.split(".")) and not key.startswith((*OWN, *FREE)) and key != "offload"
    }


def test_every_key_of_verl_is_read_or_refused():
    read = read_keys("agent_base")
    keys = verl_keys()
    assert len(keys) > 200
    unread = {key for key in keys if key not in read}
    refused = {key for key in keys if remedy(key, megatron=False)}
    assert unread - refused - IN_CHECK_UPDATE == set(), "verl does not read these, and nothing refuses them"
    assert refused - unread - WITHOUT_EFFECT.keys() == set(), "verl reads these, and they are refused"


def test_the_table_of_unread_keys_has_no_entry_without_a_key():
    keys = dict(leaves(reference("agent_base")))
    for name in (*UNREAD, *UNREAD_WITH_FSDP):
        assert any(key == name or (name.endswith((".", "_")) and key.startswith(name)) for key in keys), name


NO_SETTINGS = ("agent_loop.yaml", "router.yaml")
"""Files that name a class for verl."""
FILES = [*RECIPES, *COMMON, *(path for path in SHARED.rglob("*.yaml") if path.name not in NO_SETTINGS)]
VERL_BASES = {"agent_sft": ("agent_sft",), "agent_dpo": ("agent_dpo",), "cpu_sft": ("agent_sft",)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_sets_only_keys_that_are_read(path: Path):
    base = kind(path) if path in RECIPES else path.stem
    own = OWN
    if base in ("agent_eval", "agent_evolve", "cpu_eval"):
        own, read = ("",), set[str]()
    else:
        read = read_keys(*VERL_BASES.get(base, ("agent_base",)))
    dead = set()
    for key in written_in(path):
        handed_on = key.startswith((*FREE, *HANDED_ON)) or {*OTHER_ENGINES, *ASIDE} & set(key.split("."))
        if not handed_on and key not in read and not (key.startswith(own) and is_read(key)):
            dead.add(key)
    assert dead == set()


@pytest.mark.parametrize("base", ["agent_base", "agent_eval", "agent_evolve", "agent_sft", "agent_dpo"])
def test_every_own_key_of_a_base_is_read(base: str):
    sections = ("",) if base in ("agent_eval", "agent_evolve") else OWN
    keys = {key for key in dict(leaves(reference(base))) if key.startswith(sections) and not key.startswith("hydra.")}
    checked = {key for key in keys if not key.startswith((*FREE, *HANDED_ON))}
    assert len(checked) > 10
    assert {key for key in checked if not is_read(key)} == set()


@pytest.mark.parametrize(
    "key", ["credit.scale", "episode.seed", "horizon.window", "agent.turns", "env.hosts.retries", "evaluation.stride"]
)
def test_a_key_that_only_another_section_has_is_not_read(key: str):
    assert not is_read(key)
