"""Test that each setting that a resumed run may change leaves what a checkpoint holds readable.

A checkpoint has the state of models, optimizers and random numbers, that of the data loader, and the queue. The first
is tried for each engine setting; the others follow from the settings that verl's loaders read.
"""

import inspect
import re
from fnmatch import fnmatchcase

import pytest
import torch
from torch.distributed.tensor import DTensor
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.config import CheckpointConfig
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.sft_trainer import SFTTrainer
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig

from tests.support.engines import batch_of, one_rank, policy_loss
from tests.support.letters import LOST, SHORT, TRUNCATED, WON
from tests.support.models import write_byte_model
from verl_agent.config.catalogue import may_change
from verl_agent.config.keys import leaves, reference
from verl_agent.platform.cpu_engine import CpuLanguageEngine

ENGINE, MODEL = "actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.model"
CHANGES = {
    f"{ENGINE}.reshard_after_forward": False,
    f"{ENGINE}.param_offload": True,
    f"{ENGINE}.optimizer_offload": True,
    f"{ENGINE}.fsdp_size": 1,
    f"{ENGINE}.forward_prefetch": True,
    f"{ENGINE}.full_determinism": False,
    f"{ENGINE}.entropy_from_logits_with_chunking": True,
    f"{ENGINE}.entropy_from_logits_chunk_size": 7,
    f"{ENGINE}.entropy_checkpointing": True,
    f"{ENGINE}.use_no_sync_for_gradient_accumulation": True,
    f"{MODEL}.enable_gradient_checkpointing": True,
}
"""Another value of each engine setting that may change."""
ELSEWHERE = (
    *("offload_policy", "enable_activation_offload", "use_torch_compile", "use_liger", "*fused_kernel*", "*dtype"),
    *("turbo_config.*", "trust_remote_code", "use_shm", "*_target_*", "pad_to_length*", "use_remove_padding"),
    *("ulysses_sequence_parallel_size", "override_config.attn_implementation", "tiled_mlp.*"),
)
"""Engine settings that need a GPU, kernels or several ranks, or that choose how a pass is computed, not its state."""


def changeable(key):
    return any(fnmatchcase(key, pattern) or fnmatchcase(key, f"{pattern}.*") for pattern in may_change("train"))


def test_every_engine_setting_that_may_change_is_tried():
    keys = [key for key in dict(leaves(reference("agent_base"))) if key.startswith((f"{ENGINE}.", f"{MODEL}."))]
    open_ = [key for key in keys if changeable(key) and key not in CHANGES]
    names = [key.removeprefix(f"{ENGINE}.").removeprefix(f"{MODEL}.") for key in open_]
    assert [name for name in names if not any(fnmatchcase(name, pattern) for pattern in ELSEWHERE)] == []
    assert [key for key in CHANGES if not changeable(key)] == []


def engine(model, **changes):
    one_rank()
    own, of_model = ({key.rpartition(".")[2]: one for key, one in changes.items() if key.startswith(part)}
                     for part in (ENGINE, MODEL))  # fmt: skip
    plain = {"use_remove_padding": False, "enable_gradient_checkpointing": False}
    config = HFModelConfig(path=str(model), override_config={"attn_implementation": "sdpa"}, **(plain | of_model))
    settings = {"strategy": "fsdp2", "use_dynamic_bsz": False, "use_remove_padding": False, "use_torch_compile": False}
    settings |= {"mixed_precision": {"param_dtype": "float32"}}
    optimizer = FSDPOptimizerConfig(lr=1e-2, total_training_steps=10, lr_warmup_steps=3)
    made = CpuLanguageEngine(config, FSDPEngineConfig(**(settings | own)), optimizer, CheckpointConfig())
    made.model_config.model_type = "language_model"
    made.initialize()
    return made


def step(trained):
    with trained.train_mode():
        trained.forward_backward_batch(batch_of([WON, LOST, SHORT, TRUNCATED]), policy_loss())
        trained.optimizer_step()
        trained.lr_scheduler_step()


def weights(trained):
    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in trained.module.parameters()]
    return torch.cat([one.detach().flatten() for one in whole])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Model, checkpoint after one step, and the weights after the next one."""
    root = tmp_path_factory.mktemp("run")
    model = write_byte_model(root / "model", ["abc"], vocabulary=300)
    trained = engine(model)
    step(trained)
    trained.save_checkpoint(str(root / "step"), None, 1)
    step(trained)
    return model, root / "step", weights(trained)


@pytest.mark.parametrize("key", CHANGES)
def test_a_run_resumes_with_another_value_to_the_same_weights(saved, key):
    model, checkpoint, expected = saved
    resumed = engine(model, **{key: CHANGES[key]})
    resumed.load_checkpoint(str(checkpoint), None, False)
    step(resumed)
    torch.testing.assert_close(weights(resumed), expected, rtol=1e-5, atol=1e-6)


LOADERS = {
    "train": (PPOTrainer._init_dataloader,),
    "sft": (SFTTrainer._build_dataloader,),
    "dpo": (SFTTrainer._build_dataloader,),
}
"""Methods of verl that make the loaders whose state is saved."""
FREE = ("data.val_batch_size", "data.val_max_samples", "data.validation_shuffle")
"""Keys of the loader of the validation, whose state is not saved."""


@pytest.mark.parametrize("command", LOADERS)
def test_no_setting_of_a_saved_loader_may_change(command):
    source = "".join(inspect.getsource(one) for one in LOADERS[command])
    names = re.findall(r"(?:config\.data|data_config)(?:\.get\(\"|\.|\[\")(\w+)", source)
    keys = {f"data.{name}" for name in names if name not in ("get", "train_files", "val_files")}
    assert {"data.train_batch_size"} < keys and any("num_workers" in key for key in keys)
    patterns = may_change(command)
    found = {key for key in keys if any(fnmatchcase(key, pattern) for pattern in patterns)}
    assert found <= set(FREE)


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (1, 2)])
def test_a_loader_does_not_read_the_state_of_another_number_of_workers(before, after):
    """So `data.num_workers` must not change."""
    loader = StatefulDataLoader(range(20), batch_size=4, num_workers=before)
    next(iter(loader))
    state, other = loader.state_dict(), StatefulDataLoader(range(20), batch_size=4, num_workers=after)
    other.load_state_dict(state)
    with pytest.raises(AssertionError):
        next(iter(other))
