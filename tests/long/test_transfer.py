"""Transfer of weights from a trainer to vLLM on a CPU, with a real engine."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.bench.transfer import new_engine, transfer
from tests.support.models import write_byte_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PROMPT = list(range(5, 25))


def test_the_engine_keeps_the_weights_that_a_trainer_changes_afterwards(tmp_path):
    """In float32 no conversion copies them; each bucket holds a part of the model and overwrites the one before."""
    folder = write_byte_model(tmp_path, ["Guess a whole number. Higher. Lower."], vocabulary=300)
    engine = new_engine(folder, "float32", load_format="dummy")
    from vllm import SamplingParams

    def written() -> list[int]:
        greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, detokenize=False)
        (output,) = engine.generate([{"prompt_token_ids": PROMPT}], greedy, use_tqdm=False)
        return list(output.outputs[0].token_ids)

    try:
        for _ in range(2):
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            with torch.no_grad():
                for value in model.parameters():
                    value.mul_(1 + torch.rand_like(value))
            expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=24, min_new_tokens=24, do_sample=False)
            weights = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
            assert sum(value.nbytes for value in weights.values()) > 2 << 20  # more than two buckets
            transfer(engine, weights, 1)
            for value in weights.values():
                value.zero_()
            engine.reset_prefix_cache()
            assert written() == expected[0, len(PROMPT) :].tolist()
    finally:
        engine.llm_engine.engine_core.shutdown()
