"""Small llama that an engine of verl updates, and that plays in bfloat16 as a rollout engine does."""

from pathlib import Path

from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

from tests.bench.learning.direct.game import LENGTH, PAD, PROMPT, TOKENS, Batch
from tests.support.engines import batch_of, jagged, new_engine, policy_loss
from tests.support.models import write_byte_tokenizer
from verl_agent.rollout.tokens import Segment

MICRO_BATCH = 16
"""Rows of a forward and backward pass."""


class Llama(nn.Module):
    """Llama of about 100,000 parameters whose call is that of `Transformer`."""

    def __init__(self) -> None:
        super().__init__()
        config = LlamaConfig(
            vocab_size=TOKENS,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=LENGTH,
            tie_word_embeddings=True,
            pad_token_id=PAD,
        )
        self.model = LlamaForCausalLM(config)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        """Return the logits of each position, float32 `(B, L, TOKENS)`. Padding follows the tokens of a row."""
        logits: Tensor = self.model(input_ids=tokens_BL, use_cache=False).logits
        return logits.float()

    def write(self, folder: Path) -> None:
        """Write the weights, and a tokenizer that engines load but do not use."""
        write_byte_tokenizer(folder, ["guess"], 300)
        self.model.save_pretrained(folder)


class EnginePolicy(Llama):
    """Llama in bfloat16 that gets its weights from an engine after each optimizer step.

    Args:
        kind: class of the engine.
        dtype: type of the engine's matrix products, `float32` or `bfloat16`.
        folder: folder that `Llama.write` wrote.
        learning_rate: of the engine's optimizer.
    """

    def __init__(self, kind: type[FSDPEngine], dtype: str, folder: Path, learning_rate: float) -> None:
        super().__init__()
        self._engine = new_engine(kind, folder, dtype, lr=learning_rate)
        self._loss = policy_loss(use_kl_loss=False)
        self._take_weights()

    def minimize(self, batch: Batch, rows: list[int], advantages_BT: Tensor) -> None:
        """Take one optimizer step with verl's policy loss.

        Args:
            batch: played episodes.
            rows: those of the step.
            advantages_BT: float `(B, T)`.
        """
        ends = [int(batch.last_action_B[row]) + 1 for row in rows]
        segments = [
            Segment(
                batch.tokens_BL[row, :PROMPT].tolist(),
                batch.tokens_BL[row, PROMPT : PROMPT + end].tolist(),
                batch.mask_BT[row, :end].long().tolist(),
                batch.old_BT[row, :end].tolist(),
            )
            for row, end in zip(rows, ends, strict=True)
        ]
        data = batch_of(segments, MICRO_BATCH)
        for name, values_BT in {"advantages": advantages_BT, "old_log_probs": batch.old_BT}.items():
            data[name] = jagged([values_BT[row, :end] for row, end in zip(rows, ends, strict=True)])
        tu.assign_non_tensor(data, calculate_entropy=False)
        with self._engine.train_mode():
            self._engine.train_batch(data, self._loss)
        self._take_weights()

    def _take_weights(self) -> None:
        weights, _ = self._engine.get_per_tensor_param()
        missing, unknown = self.model.load_state_dict(dict(weights), strict=False)
        assert set(missing) <= {"lm_head.weight"} and not unknown  # tied to the embedding
        self.model.bfloat16()
