"""A language model of half a million parameters with a tokenizer of its own, made in a second, that knows nothing."""

from collections.abc import Iterable
from pathlib import Path

SPECIAL = ["<|im_end|>", "<|im_start|>"]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(folder: Path, texts: Iterable[str], vocabulary: int = 320, seed: int = 0) -> Path:
    """Write a random llama and a byte-level tokenizer.

    Args:
        folder: to write into.
        texts: what the tokenizer's merges are learnt from.
        vocabulary: most tokens, at least 258.
        seed: of the weights.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    plain.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, eos_token=SPECIAL[0], pad_token=SPECIAL[0], bos_token=SPECIAL[1]
    )
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
