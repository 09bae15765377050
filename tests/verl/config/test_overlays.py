"""Tests of every overlay with every GPU recipe: it composes, every key is read, verl accepts it, and memory suffices.

Each overlay is composed by Hydra once. For all recipes it is merged, which gives the same result faster. The quick
tests take one overlay of each group with each recipe, `make test-long` takes all. The table in
docs/guides/recipes.md says what has run on a GPU.
"""

import re
from contextlib import chdir
from functools import cache
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from tests.support.composing import RECIPES, ROOT, SHARED, accepted_by_verl, kind, recipe, written_in
from tests.support.gpu_report import ROLLOUTS, SMALL, TRAINERS
from verl_agent.config.checks import check_keys
from verl_agent.config.keys import reference
from verl_agent.config.plan import OfflinePlan, RunPlan
from verl_agent.errors import ConfigError
from verl_agent.training.preflight.condition_table import CONDITIONS
from verl_agent.training.preflight.conditions import check_conditions
from verl_agent.training.preflight.estimates import (
    ADAM,
    CARD_GB,
    FLOPS,
    SHAPES,
    TOKENS_S,
    MeanEpisode,
    Shape,
    cpu_step_s,
    estimate_footprint,
    offline_gb,
    shape_of,
)
from verl_agent.training.preflight.lengths import check_micro_batches, data_parallel
from verl_agent.training.preflight.megatron import MEGATRON_CONDITIONS
from verl_agent.training.preflight.oracle_lengths import OracleLengths
from verl_agent.training.preflight.schedules import check_places

GPU = [path for path in RECIPES if kind(path) == "agent_base" and recipe(path).trainer.device != "cpu"]
OVERLAYS = sorted(
    path.relative_to(SHARED / "overlay") for path in SHARED.glob("overlay/*/*.yaml") if not path.stem.endswith("_cpu")
)
ONE = ROOT / "recipes/textcraft/grpo.yaml"


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@cache
def written(overlay: Path) -> DictConfig:
    return OmegaConf.load(SHARED / "overlay" / overlay)


def merged(path: Path, overlay: Path) -> DictConfig:
    config = recipe(path)
    OmegaConf.set_struct(config, False)
    config.merge_with(written(overlay))
    return config


def check(config: DictConfig) -> None:
    """Run the checks of a training command up to the point where it loads a model."""
    check_keys(config, "agent_base")
    run = plan(config)
    for part in run.envs:
        check_places(run, part)
    check_conditions(run.values, (*CONDITIONS, *MEGATRON_CONDITIONS))
    check_micro_batches(run)
    accepted_by_verl(config)


def plan(config: DictConfig) -> RunPlan:
    OmegaConf.resolve(config)
    return RunPlan.of(OmegaConf.to_container(config))


def peak_gb(config: DictConfig, card_gb: float = CARD_GB) -> float:
    run = plan(config)
    shape = shape_of("smollm2-135m" if run.actor.path == "runs/textcraft_sft_135m" else run.actor.path)
    critic = shape_of(run.critic.path) if run.critic else None
    assert shape is not None
    return estimate_footprint(run, shape, critic, card_gb).peak_gb


OF_THE_UPDATE = ("algorithm", "correction", "ratio")


def is_quick(path: Path, overlay: Path) -> bool:
    """Return True for all overlays of `ONE`, and for one overlay of each group with every other recipe."""
    group = [other for other in OVERLAYS if other.parent == overlay.parent]
    return path == ONE or overlay == group[GPU.index(path) % len(group)]


PAIRS = [
    pytest.param(
        path,
        overlay,
        id=f"{name(path)}-{overlay.with_suffix('')}",
        marks=() if is_quick(path, overlay) else pytest.mark.slow,
    )
    for path in GPU
    for overlay in OVERLAYS
    if path.stem in ("grpo", "scaling_inter") or overlay.parent.name not in OF_THE_UPDATE
    if path == ONE or overlay.parent.name not in ("attention", "correction", "ratio")  # no recipe has their values
]


@pytest.mark.parametrize(("path", "overlay"), PAIRS)
def test_every_recipe_accepts_every_overlay(path, overlay):
    if path.parent.name in ("openspiel", "reasoning_gym", "textarena"):
        pytest.importorskip("pyspiel" if path.parent.name == "openspiel" else path.parent.name)
    config = merged(path, overlay)
    with chdir(ROOT):
        check(config)
    if str(overlay.with_suffix("")) == "size/1gpu_80gb" and path.parent.name == "webarena":
        return  # needs LoRA; see the next test
    sized = config.trainer.n_gpus_per_node * config.trainer.nnodes
    if overlay.parent.name != "model" or sized == 8:  # a larger model needs more GPUs than a small recipe has
        assert peak_gb(config) <= CARD_GB


def test_webarena_needs_lora_on_one_gpu():
    """Its episodes of 16,000 tokens do not fit beside the full optimizer state of a 3B model."""
    path = ROOT / "recipes/webarena/grpo.yaml"
    whole, lora = (
        recipe(path, "+overlay/size=1gpu_80gb"),
        recipe(path, "+overlay/size=1gpu_80gb", "+overlay/lora=rank_32"),
    )
    for config in (whole, lora):
        OmegaConf.resolve(config)
    assert peak_gb(lora) <= CARD_GB < peak_gb(whole)


def test_a_critic_is_estimated_without_the_lora_adapters_of_the_policy():
    """Both have the same shape, so the shape does not tell which of the two has adapters."""
    config = recipe(ONE, "+overlay/algorithm=ppo", "+overlay/lora=rank_32", "offload=false")
    OmegaConf.resolve(config)
    shape = SHAPES[config.actor_rollout_ref.model.path]
    both, alone = (estimate_footprint(plan(config), shape, critic).train_gb for critic in (shape, None))
    gpus = config.trainer.n_gpus_per_node * config.trainer.nnodes
    assert both - alone == pytest.approx(4 * ADAM * shape.parameters / gpus / 1e9, rel=0.01)


def test_the_estimated_time_of_a_cpu_step_is_that_of_the_recorded_quickstart_within_a_factor_of_two():
    """Steps 1 to 3 of docs/results/textcraft_quickstart.tar.gz: 19.7, 14.6 and 21.2 s with 138 tokens an episode."""
    config = recipe(ROOT / "recipes/textcraft/scaling_inter_cpu.yaml")
    OmegaConf.resolve(config)
    run, smol = plan(config), Shape(30, 576, 9, 3, 64, 1536, 49152, True)
    assert smol.parameters == pytest.approx(134.5e6, rel=0.01)
    rate, played = 2.6e11, MeanEpisode(138, 44)
    seconds = cpu_step_s(run, smol, None, rate, played)
    assert 18.5 / 2 < seconds < 18.5 * 2
    assert cpu_step_s(run, smol, None, 2 * rate, played) < seconds
    assert cpu_step_s(run, smol, smol, rate, played) > 1.4 * seconds
    assert cpu_step_s(run, smol, None, rate) > 3 * seconds, "full length is an upper bound"


def test_an_expected_episode_has_turns_between_those_of_the_oracle_and_the_limit():
    oracle = OracleLengths(turns=[2, 4], replies=[10, 12], answers=[5], prompts=[50])
    assert oracle.expected(5) == MeanEpisode(50 + 4 * 16, 4 * 11)
    assert oracle.expected(2) == MeanEpisode(50 + 2 * 16, 2 * 11)


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_offline_training_on_eight_gpus_shards_the_optimizer(kind):
    """A 7B model: its states are sharded over the GPUs, a micro batch is not."""
    plain = reference(f"agent_{kind}") | {"trainer": {"total_epochs": 2}, "env": {"name": "talk"}, "agent": {}}
    plain["data"] = plain["data"] | {"max_length": 4096, "use_dynamic_bsz": False, "micro_batch_size_per_gpu": 1}
    shape = SHAPES["Qwen/Qwen2.5-7B-Instruct"]
    one_gb, eight_gb = (offline_gb(OfflinePlan.of(plain), shape, gpus) for gpus in (1, 8))
    assert one_gb - eight_gb == pytest.approx(4 * ADAM * shape.parameters * 7 / 8 / 1e9)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: str(path.with_suffix("")))
def test_merging_an_overlay_equals_composing_it(overlay):
    composed = recipe(ONE, f"+overlay/{overlay.parent.name}={overlay.stem}")
    expected = merged(ONE, overlay)
    for key in written_in(SHARED / "overlay" / overlay):
        one, other = (OmegaConf.select(config, key, default="absent") for config in (composed, expected))
        assert one == other != "absent", key
    assert (SHARED / "overlay" / overlay).read_text(encoding="utf-8").startswith("# @package _global_\n# ")


@pytest.mark.parametrize(
    "path", [path for path in GPU if path.parent.name == "textcraft" and path.stem != "grpo_135m"], ids=name
)  # Megatron splits a model over two GPUs
def test_model_engine_megatron_switches_every_strategy(path):
    config = recipe(path, "model_engine=megatron")
    with chdir(ROOT):
        check(config)
    strategies = {
        config.actor_rollout_ref.actor.strategy,
        config.actor_rollout_ref.ref.strategy,
        config.critic.strategy,
    }
    assert strategies == {"megatron"}
    assert peak_gb(config) <= CARD_GB


@pytest.mark.parametrize("path", GPU, ids=name)
def test_a_recipe_fits_into_the_gpus_that_it_needs(path):
    needs = re.match(r"# Needs: (\w+) GPUs? of (\d+) GB", path.read_text(encoding="utf-8").splitlines()[1])
    assert needs
    card_gb = float(needs[2])
    config = recipe(path)
    OmegaConf.resolve(config)
    assert peak_gb(config, card_gb) <= card_gb
    assert config.trainer.n_gpus_per_node == {"one": 1}.get(needs[1]) or int(needs[1])


@pytest.mark.parametrize("path", GPU, ids=name)
def test_the_engines_of_a_recipe_have_room_for_all_episodes_of_a_step(path):
    """At full length. A larger share of the GPU would be memory that nothing uses."""
    config = recipe(path)
    OmegaConf.resolve(config)
    small = path.stem == "grpo_135m"
    shape = shape_of("smollm2-135m" if small else config.actor_rollout_ref.model.path)
    assert shape is not None
    estimated = estimate_footprint(plan(config), shape, None, 24.0 if small else CARD_GB)
    assert estimated.of_episodes == config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    assert estimated.of_episodes <= estimated.episodes


def resolved(*changes: str) -> RunPlan:
    return plan(recipe(ONE, *changes))


def test_the_estimate_of_megatron_follows_its_recomputation():
    """Verl's Megatron engine reads `recompute_granularity` alone."""
    section, shape = "actor_rollout_ref.actor.megatron.override_transformer_config", SHAPES["Qwen/Qwen3-8B"]
    kept = [f"{section}.recompute_{name}=null" for name in ("granularity", "method", "num_layers")]
    changes = ["model_engine=megatron", "+overlay/model=qwen3_8b"]
    again, whole = (estimate_footprint(resolved(*changes, *more), shape, None) for more in ([], kept))
    assert again.train_gb < CARD_GB < whole.train_gb
    assert again.step_s > whole.step_s
    ignored = resolved(*changes, *kept, "actor_rollout_ref.model.enable_gradient_checkpointing=false")
    assert estimate_footprint(ignored, shape, None) == whole


def test_the_estimate_follows_the_dtype_of_the_weights():
    shape = SHAPES["Qwen/Qwen2.5-7B-Instruct"]
    half = estimate_footprint(
        resolved("actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16"), shape, None
    ).train_gb
    whole = estimate_footprint(resolved(), shape, None).train_gb
    assert whole - half == pytest.approx(2 * ADAM * shape.parameters / 8 / 1e9)


@pytest.mark.parametrize("keys", [["enable_sleep_mode", "free_cache_engine"], ["enable_sleep_mode"]])
def test_an_engine_that_stays_awake_keeps_its_memory_in_training(keys):
    """A run calls the engine's sleep with `free_cache_engine`; without sleep mode vLLM then frees nothing."""
    awake = [f"actor_rollout_ref.rollout.{key}=false" for key in keys]
    config = recipe(ROOT / "recipes/textcraft/grpo_135m.yaml", *awake)
    with chdir(ROOT):
        check(config)
    shape = shape_of("smollm2-135m")
    assert shape is not None
    asleep = recipe(ROOT / "recipes/textcraft/grpo_135m.yaml")
    OmegaConf.resolve(asleep)
    one, other = (estimate_footprint(plan(each), shape, None, 24.0) for each in (config, asleep))
    assert one.train_gb - other.train_gb == pytest.approx(0.4 * 24)
    assert one.peak_gb < 24


def test_engines_on_gpus_of_their_own_leave_the_trainer_out():
    shape = SHAPES["Qwen/Qwen2.5-7B-Instruct"]
    changes = ["+overlay/rollout=separate", "trainer.n_gpus_per_node=4"]
    together = estimate_footprint(resolved(), shape, None)
    four, eight = (
        estimate_footprint(resolved(*changes, f"actor_rollout_ref.rollout.n_gpus_per_node={gpus}"), shape, None)
        for gpus in (4, 8)
    )
    assert four.play_gb == eight.play_gb < together.play_gb and four.train_gb > together.train_gb
    assert (four.episodes, eight.episodes) == (together.episodes // 2, together.episodes)


def test_a_step_counts_20_operations_for_each_parameter_and_token():
    """Log-probs of policy and reference 4; each of two epochs 8: forward, forward again, and backward."""
    shape, config = SHAPES["Qwen/Qwen2.5-7B-Instruct"], resolved()
    tokens = 32 * 8 * (1536 + 10240)
    assert estimate_footprint(config, shape, None).step_s == pytest.approx(
        20 * shape.parameters * tokens / (8 * FLOPS) + (1536 + 10240) / TOKENS_S, rel=0.01
    )


def test_a_pass_has_the_tokens_of_a_whole_episode_or_more():
    for path in GPU:
        config = recipe(path)
        tokens = config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu
        assert tokens == max(
            config.actor_rollout_ref.rollout.max_model_len, 12000 if path.stem == "grpo_135m" else 24000
        )


def test_ranks_are_the_gpus_without_those_that_share_rows():
    config = recipe(ONE, "+overlay/algorithm=ppo")
    config.actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size = 4
    assert data_parallels(config) == [2, 8]
    megatron = recipe(ONE, "+overlay/algorithm=ppo", "model_engine=megatron")
    megatron.actor_rollout_ref.actor.megatron.pipeline_model_parallel_size = 2
    assert data_parallels(megatron) == [2, 4]


def data_parallels(config: DictConfig) -> list[int]:
    run = plan(config)
    return [data_parallel(one, run.layout.ranks) for one in run.trained]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=3", "needs groups of 3 GPUs"),
        ("critic.fsdp.ulysses_sequence_parallel_size=16", "critic.fsdp.ulysses_sequence_parallel_size=16 needs groups"),
    ],
)
def test_parallel_sizes_that_do_not_divide_the_gpus_raise_config_error(change, message):
    config = recipe(ONE, "+overlay/algorithm=ppo")
    key, value = change.split("=")
    OmegaConf.update(config, key, int(value))
    with pytest.raises(ConfigError, match=message):
        check_micro_batches(plan(config))


@pytest.mark.parametrize("trainer", ["fsdp2", "megatron"])
def test_the_runs_of_make_test_gpu_are_valid(trainer):
    config = recipe(ONE, *SMALL, *TRAINERS[trainer].overrides, *ROLLOUTS["sglang"].overrides)
    with chdir(ROOT):
        check(config)


def test_scaling_inter_and_grpo_differ_only_in_the_horizon():
    for path in sorted(ROOT.glob("recipes/*/scaling_inter*.yaml")):
        fixed = path.with_name(path.name.replace("scaling_inter", "grpo"))
        pair = [OmegaConf.to_container(recipe(one), resolve=False) for one in (path, fixed)]
        horizons = [whole.pop("horizon") for whole in pair]
        assert pair[0] == pair[1] and horizons[0] != horizons[1], path


# Estimates


def test_shapes_have_the_parameter_counts_of_their_names():
    billions = {
        "0.5B": 0.49,
        "1.5B": 1.54,
        "3B": 3.09,
        "7B": 7.62,
        "1.7B": 1.72,
        "4B": 4.02,
        "8B": 8.19,
        "14B": 14.77,
        "135m": 0.13,
    }
    for hub_id, shape in SHAPES.items():
        size = hub_id.split("-")[1]
        assert shape.parameters / 1e9 == pytest.approx(billions[size], abs=0.01), hub_id


def test_a_shape_is_read_from_a_model_folder(tmp_path):
    from transformers import Qwen2Config

    config = Qwen2Config(
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=11008,
        num_hidden_layers=36,
        num_attention_heads=16,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    config.save_pretrained(tmp_path)
    assert shape_of(str(tmp_path)) == SHAPES["Qwen/Qwen2.5-3B-Instruct"]
    assert shape_of("./nowhere") is None
