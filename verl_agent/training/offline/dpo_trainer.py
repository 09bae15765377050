"""verl's SFT trainer with the loss of DPO, on pairs of episodes."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp, all_gather_object, all_reduce, barrier
from torch.nn.functional import logsigmoid
from typing_extensions import override
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig

from verl_agent.runs.identity import read_settings
from verl_agent.trace.provenance import read_json, write_json_atomically
from verl_agent.training.offline.encoding import PairDataset, collate_pairs
from verl_agent.training.offline.selection import content_hash
from verl_agent.training.offline.sft_trainer import SupervisedTrainer


def reply_log_probs(log_probs: Tensor, loss_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the log-probs of all replies of each row.

    Args:
        log_probs: jagged `(2B, T)` of any type; entry t is the log-probability of token t + 1. The last entry of a row
            belongs to no token of the row and is ignored.
        loss_mask: jagged `(2B, T)`, 1 on the tokens that the model wrote, 0 on the first token of each row.

    Returns:
        Sums in nats and numbers of tokens, float32 or wider, `(2B,)` each. In bfloat16, with its two or three digits,
        a sum over an episode would lose whole nats.
    """
    exact = torch.promote_types(log_probs.dtype, torch.float32)
    written = torch.roll(loss_mask.values(), shifts=-1, dims=0).to(exact)
    offsets = log_probs.offsets()
    written[offsets[1:] - 1] = 0
    rows = torch.repeat_interleave(offsets.diff())
    empty = torch.zeros(len(offsets) - 1, dtype=exact, device=written.device)
    return empty.index_add(0, rows, log_probs.values().to(exact) * written), empty.index_add(0, rows, written)


def dpo_losses(policy_2B: Tensor, reference_2B: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Return the loss of each pair, and its margin: the policy's preference for w less the reference's.

    Args:
        policy_2B: float `(2B,)`, log-probability of the replies of each row, in nats.
        reference_2B: float `(2B,)`, the same under the reference model, without gradient.
        beta: see `PreferenceSettings.beta`.

    Returns:
        Losses and margins in nats, float `(B,)` each.

    Example:
        >>> losses, margins = dpo_losses(torch.tensor([-1.0, -3.0]), torch.tensor([-2.0, -2.0]), beta=0.5)
        >>> [round(value.item(), 4) for value in (losses[0], margins[0])]
        [0.3133, 2.0]
    """
    gained_B2 = (policy_2B - reference_2B).view(-1, 2)
    margins_B = gained_B2[:, 0] - gained_B2[:, 1]
    return -logsigmoid(beta * margins_B), margins_B


PAIR = 2
"""Number of rows that verl must keep in one micro-batch (`force_group_size`)."""
REFERENCE = "reference.json"
"""File in a run's folder with the log-probs of the reference model, and a hash of the pairs and of the settings, which
identify its weights."""


def preference_loss(
    beta: float, nll_coef: float, model_output: dict[str, torch.Tensor], data: Any, dp_group: Any = None
) -> tuple[torch.Tensor, dict[str, float]]:
    """Compute the share of one micro-batch in the mean loss over all pairs of the batch.

    Args:
        model_output: `log_probs`, jagged `(2B, T)`.
        data: `loss_mask`, `reference`, and what verl adds: `global_batch_size` in pairs and `dp_size`.

    Returns:
        The loss and its metrics, which verl sums over micro-batches and averages over data-parallel ranks. Metrics are
        the mean margin and its two terms in nats, and the fraction of pairs with a positive margin.
    """
    sums_2B, tokens_2B = reply_log_probs(model_output["log_probs"], data["loss_mask"])
    reference_2B = data["reference"].to(sums_2B.dtype)
    losses_B, margins_B = dpo_losses(sums_2B, reference_2B, beta)
    if nll_coef:
        losses_B = losses_B - nll_coef * (sums_2B / tokens_2B)[::PAIR]
    share = data["dp_size"] / data["global_batch_size"]
    gained_2B = (sums_2B - reference_2B).detach()
    metrics = {
        "train/margin": margins_B.detach().sum().item() * share,
        "train/better": gained_2B[::PAIR].sum().item() * share,
        "train/worse": gained_2B[1::PAIR].sum().item() * share,
        "train/accuracy": (margins_B > 0).sum().item() * share,
    }
    return losses_B.sum() * share, metrics


class PairWorker(TrainingWorker):
    """Training worker of verl that keeps pairs in one micro-batch and reduces metrics to numbers."""

    @override
    def train_batch(self, data: Any) -> Any:
        tu.assign_non_tensor(data, force_group_size=PAIR)
        output = super().train_batch(data)
        if output is not None:
            metrics = tu.get(output, "metrics")
            metrics |= {key: mean_of_sums(value) for key, value in metrics.items() if isinstance(value, list)}
        return output

    @override
    def infer_batch(self, data: Any) -> Any:
        tu.assign_non_tensor(data, force_group_size=PAIR)
        return super().infer_batch(data)


def mean_of_sums(by_rank: list[Any]) -> float:
    """Return the mean over ranks of the sum over micro-batches; without ranks, the sum."""
    sums = [float(sum(values)) if isinstance(values, list) else None for values in by_rank]
    known = [value for value in sums if value is not None]
    return sum(known) / len(known) if known else float(sum(by_rank))


class PreferenceTrainer(SupervisedTrainer):
    """Trainer of DPO in verl's SFT loop. The reference model is the model that training starts from.

    The reference model scores every pair once, before the first step and before a checkpoint is loaded. The scores are
    saved in the folder of the run, so that a resumed run uses the same ones.
    """

    def _build_engine(self) -> None:
        preference = self.plan.value("preference")
        self.loss_fn = partial(preference_loss, float(preference["beta"]), float(preference["nll_coef"]))
        self.training_client = PairWorker(
            TrainingWorkerConfig(
                model_type="language_model",
                model_config=self.model_config,
                engine_config=self.engine_config,
                optimizer_config=self.optimizer_config,
                checkpoint_config=self.checkpoint_config,
                profiler_config=self.profiler_config,
            )
        )
        self.training_client.set_loss_fn(loss_fn=self.loss_fn)
        self.engine = self.training_client.engine

    def _build_dataloader(self) -> None:
        super()._build_dataloader()
        for loader in (self.train_dataloader, self.val_dataloader):
            if loader is not None:
                loader.collate_fn = collate_pairs

    def _init_engine(self) -> None:
        super()._init_engine()
        cache = self.plan.schedule.folder / REFERENCE
        data = [dataset for dataset in (self.train_dataset, self.val_dataset) if dataset is not None]
        names = [name for dataset in data for name in dataset.fingerprints]
        source = content_hash([names, read_settings(cache.parent)])
        scores_N2 = self._read_reference(cache, source)
        if scores_N2 is None:
            scores_N2 = torch.cat([self._score(dataset) for dataset in data])
            if self.rank == 0:
                write_json_atomically(cache, {"of": source, "log_probs": scores_N2.tolist()})
            barrier()
        for dataset, log_probs_N2 in zip(data, scores_N2.split([len(dataset) for dataset in data]), strict=True):
            dataset.set_reference(log_probs_N2)

    def _read_reference(self, cache: Path, source: str) -> torch.Tensor | None:
        """Return earlier scores of the same pairs by the same model; None unless every rank can read them."""
        saved = read_json(cache, "Delete it; the scores are computed again.") if cache.is_file() else {}
        known = torch.tensor(int(saved.get("of") == source), device=get_device_name())
        all_reduce(known, op=ReduceOp.MIN)
        return torch.tensor(saved["log_probs"]) if known.item() else None

    def _score(self, dataset: PairDataset) -> torch.Tensor:
        """Return log-probs of the replies under the current weights, float `(N, 2)`; ranks share the work."""
        rank, size = self.engine.get_data_parallel_rank(), self.engine.get_data_parallel_size()
        pairs_a_pass = int(self.plan.actor.passes.rows or 1)
        share = -(-len(dataset) // size)  # FSDP needs the same number of passes on every rank
        mine = [min(rank * share + offset, len(dataset) - 1) for offset in range(share)]
        scores: list[torch.Tensor] = []
        for start in range(0, share, pairs_a_pass):
            chunk = [dataset[index] for index in mine[start : start + pairs_a_pass]]
            batch = tu.get_tensordict(
                tensor_dict=collate_pairs(chunk),
                non_tensor_dict={
                    "use_remove_padding": self.plan.actor.model["use_remove_padding"],
                    "use_dynamic_bsz": False,
                    "micro_batch_size_per_gpu": len(chunk),
                    "temperature": 1.0,
                    "pad_mode": self.plan.value("data.pad_mode"),
                    "pad_token_id": self.model_config.tokenizer.pad_token_id,
                    "compute_loss": False,
                },
            )
            output = self.training_client.infer_batch(batch)
            sums_2B, _ = reply_log_probs(output["log_probs"].float(), batch["loss_mask"].cpu())
            scores.append(sums_2B.view(-1, PAIR))
        gathered: list[Any] = [None] * size
        all_gather_object(gathered, torch.cat(scores), group=self.engine.get_data_parallel_group())
        return torch.cat(gathered)[: len(dataset)]
