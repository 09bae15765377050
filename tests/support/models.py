"""Random llamas for tests and benchmarks: a few million untrained parameters, created in a second."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

END, BEGIN = "<|im_end|>", "<|im_start|>"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_model(folder: Path) -> Path:
    """Write a llama of 7 million random parameters with SmolLM2's tokenizer."""
    from transformers import AutoTokenizer

    from verl_agent.models.resolve import prepare_smollm2

    tokenizer = AutoTokenizer.from_pretrained(prepare_smollm2())
    return write_llama(folder, tokenizer, num_hidden_layers=2, num_key_value_heads=1)


def write_byte_model(folder: Path, texts: Iterable[str], vocabulary: int, **sizes: int) -> Path:
    """Write a random llama with its own byte-level tokenizer."""
    tokenizer = write_byte_tokenizer(folder, texts, vocabulary)
    return write_llama(folder, tokenizer, **{"max_position_embeddings": 1024, **sizes})


def write_byte_tokenizer(folder: Path, texts: Iterable[str], vocabulary: int) -> Any:
    """Write a byte-level tokenizer with a ChatML template, and return it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END, BEGIN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    plain.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=END, pad_token=END, bos_token=BEGIN)
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    return tokenizer


def without_template(model: Path) -> Path:
    """Remove the chat template from a model's folder, and return it."""
    (model / "chat_template.jinja").unlink()
    return model


def write_llama(folder: Path, tokenizer: Any, **sizes: int) -> Path:
    """Write a random llama and its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    smallest = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **{**smallest, **sizes},
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_qwen2(folder: Path, texts: Iterable[str], vocabulary: int, **sizes: int) -> Path:
    """Write a random Qwen2 with its own byte-level tokenizer, and with heads that two ranks can divide.

    No text has the padding token: transformers computes no gradient for its embedding, and Megatron does.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = write_byte_tokenizer(folder, texts, vocabulary)
    tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
    tokenizer.save_pretrained(folder)
    smallest = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4}
    config = Qwen2Config(
        vocab_size=len(tokenizer) + len(tokenizer) % 2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **{**smallest, **sizes},
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).float()
    with torch.no_grad():
        for weight in model.parameters():  # as a trained model: norms and biases differ from 1 and 0
            if weight.dim() == 1:
                weight.add_(0.1 * torch.randn_like(weight))
            else:
                weight.normal_(0, 0.08)
    model.save_pretrained(folder)
    return folder


def write_qwen3_moe(folder: Path, tokenizer: Any, layers: int) -> Path:
    """Write a random Qwen3 with 32 experts in each layer, of which a token takes 4, and its tokenizer."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer) + len(tokenizer) % 2,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=32,
        num_experts_per_tok=4,
        norm_topk_prob=True,
        initializer_range=0.1,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(config).float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_critic(folder: Path, model: Path) -> Path:
    """Write a critic with the weights of a policy and a random value head, which verl would draw anew in each run."""
    import torch
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    torch.manual_seed(0)
    AutoModelForTokenClassification.from_pretrained(model, num_labels=1).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder
