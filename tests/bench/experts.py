"""Experts that the rollout and the update choose differently, and the effect of replaying those of the rollout.

    .venv-megatron-cpu/bin/python -m tests.bench.experts        # after `make setup-megatron`

A tiny random Qwen3-MoE samples with vLLM in bfloat16. verl's Megatron engine computes log-probs and gradient in
float32, first with its own experts and then with those that vLLM returned (`router_replay.mode=R3`). The error of a
gradient is its distance from that of the policy that sampled, whose weights are rounded to bfloat16 and whose experts
are replayed, relative to its length.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verl_agent.platform.megatron.activation import STAND_INS

ROWS, PROMPT, REPLY = 8, 64, 64
RECIPE = """
defaults: [agent_grpo, cpu, _self_]
env: {{name: guess_number}}
horizon: {{max_turns: [2]}}
data: {{train_batch_size: 4, max_prompt_length: 256, max_response_length: 256}}
actor_rollout_ref:
  model: {{path: {model}}}
  actor: {{megatron: {{dtype: float32, router_replay: {{mode: R3}}}}}}
trainer: {{total_training_steps: 10, experiment_name: experts}}
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """Differences between rollout and update.

    Attributes:
        other: share of tokens with other experts in at least one layer.
        log_probs: mean absolute difference of log-probs, without and with replay.
        gradients: relative error of the gradient, without and with replay.
    """

    other: float
    log_probs: tuple[float, float]
    gradients: tuple[float, float]


def sample(model: Path) -> list[Any]:
    """Return rows (`Segment`) that vLLM has sampled, with log-probs and experts."""
    import torch
    from vllm import LLM, SamplingParams

    from verl_agent.evaluation.vllm_engine import ON_CPU
    from verl_agent.rollout.tokens import Segment

    engine = LLM(
        str(model),
        dtype="bfloat16",
        max_model_len=512,
        max_num_seqs=ROWS,
        enforce_eager=True,
        enable_return_routed_experts=True,
        worker_extension_cls="verl_agent.platform.worker_extension.CpuWorkerExtension",
        **ON_CPU,
    )
    torch.manual_seed(0)
    prompts = torch.randint(0, 256, (ROWS, PROMPT)).tolist()
    options = SamplingParams(max_tokens=REPLY, min_tokens=REPLY, logprobs=0, seed=0)
    rows = []
    for output in engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], options):
        (said,) = output.outputs
        ids, found = list(said.token_ids), said.logprobs or []
        log_probs = [at[token].logprob for token, at in zip(ids, found, strict=True)]
        rows.append(
            Segment(output.prompt_token_ids, ids, [1] * len(ids), log_probs, routed_experts=said.routed_experts)
        )
    return rows


def other_experts(model: Path, rows: Sequence[Any]) -> float:
    """Return the share of tokens for which float32 chooses other experts in at least one layer."""
    import torch
    from transformers import AutoModelForCausalLM

    ids = torch.tensor([[*row.prompt_ids, *row.response_ids] for row in rows])
    theirs = torch.stack([torch.as_tensor(row.routed_experts).long() for row in rows])  # (rows, T - 1, layers, experts)
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(ids, output_router_logits=True)
    ours = torch.stack([one.topk(theirs.shape[-1], -1)[1] for one in logits.router_logits], 1)
    ours = ours.unflatten(0, ids.shape)[:, :-1]
    return float((ours.sort(-1)[0] != theirs.sort(-1)[0]).any(-1).any(-1).float().mean())


def batch(rows: Sequence[Any], replay: bool) -> Any:
    """Return the rows as verl's trainer gives them to its engine; the old log-probs are those of the rollout."""
    import torch
    from verl.utils import tensordict_utils as tu

    from tests.support.engines import batch_of, jagged

    data = batch_of(rows, micro_batch=2, use_remove_padding=True)
    data["old_log_probs"] = jagged([torch.tensor(row.response_log_probs) for row in rows])
    tu.assign_non_tensor(data, enable_routing_replay=replay)
    return data


def log_prob_gap(engine: Any, rows: Sequence[Any], replay: bool) -> float:
    """Return the mean absolute difference of log-probs between update and rollout."""
    import torch
    from verl.utils import tensordict_utils as tu

    data = batch(rows, replay)
    tu.assign_non_tensor(data, compute_loss=False)
    with engine.eval_mode():
        found = engine.infer_batch(data)["model_output"]["log_probs"].unbind()
    gaps = [
        (ours[:-1][-len(row.response_ids) :] - torch.tensor(row.response_log_probs)).abs()
        for ours, row in zip(found, rows, strict=True)
    ]
    return float(torch.cat(gaps).mean())


def gradient(engine: Any, rows: Sequence[Any], replay: bool) -> Any:
    """Return the gradient of verl's policy loss as one vector."""
    import torch

    from tests.support.engines import policy_loss

    with engine.train_mode():
        engine.optimizer_zero_grad()
        engine.forward_backward_batch(batch(rows, replay), policy_loss())
        return torch.cat([weight.main_grad.flatten().clone() for weight in engine.module[0].parameters()])


def measure(layers: int, folder: Path) -> Difference:
    """Return the differences for a model with this number of layers."""
    import torch
    from verl.utils.distributed import initialize_global_process_group_ray

    from tests.support.composing import recipe
    from tests.support.megatron_rank import new_engine
    from tests.support.models import write_byte_tokenizer, write_qwen3_moe

    torch.set_num_threads(1)  # the model is small
    model = write_qwen3_moe(folder / "model", write_byte_tokenizer(folder / "model", ["go up"], 300), layers)
    rows = sample(model)
    initialize_global_process_group_ray()
    (folder / "recipe.yaml").write_text(RECIPE.format(model=model))
    engine = new_engine(recipe(folder / "recipe.yaml", "model_engine=megatron"))
    gaps = [log_prob_gap(engine, rows, replay) for replay in (False, True)]
    found = [gradient(engine, rows, replay) for replay in (False, True)]
    for weight in engine.module[0].parameters():
        weight.data.copy_(weight.data.bfloat16())
    true = gradient(engine, rows, replay=True)
    errors = [float((one - true).norm() / true.norm()) for one in found]
    return Difference(other_experts(model, rows), (gaps[0], gaps[1]), (errors[0], errors[1]))


def measure_in_process(layers: int) -> Difference:
    """Return the differences, measured in a process of its own, because Megatron's state is that of its process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {STAND_INS: "1", "VERL_PLATFORM": "cpu", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    variables |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.bench.experts", str(layers), folder]
        subprocess.run(command, env=os.environ | variables, check=True, stdout=sys.stderr)
        found = json.loads((Path(folder) / "difference.json").read_text())
    return Difference(**found)


def main() -> None:
    """Print the table, each row when it is measured."""
    sys.stdout.write("| layers | tokens with other experts | log-probs | with replay | gradient | with replay |\n")
    for layers in (2, 8):
        one = measure_in_process(layers)
        gaps, errors = (f"{gap:.4f}" for gap in one.log_probs), (f"{error:.3f}" for error in one.gradients)
        sys.stdout.write(f"| {' | '.join((str(layers), f'{one.other:.1%}', *gaps, *errors))} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        target = Path(sys.argv[2])
        (target / "difference.json").write_text(json.dumps(asdict(measure(int(sys.argv[1]), target))))
