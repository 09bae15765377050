"""Tokenizers and chat templates of many model families, small, with their control tokens."""

import json
from collections.abc import Callable, Mapping
from functools import cache

from tests.support.tokens import TEMPLATES, Model, load_model

CALLS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Tokens of Qwen3 that are not marked as special."""
LLAMA3 = (
    "<s>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
PHI = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GEMMA = (
    "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>assistant\n{% endif %}"
)
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}</s>{% else %}[INST]{{ m.content }}[/INST]"
    "{% endif %}{% endfor %}"
)
DEEPSEEK = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}<\uff5cend\u2581of\u2581sentence\uff5c>"
    "{% else %}<\uff5c{{ m.role }}\uff5c>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<\uff5cAssistant\uff5c>{% endif %}"
)


def smollm2_with(template: str, model_type: str, special: tuple[str, ...], plain: tuple[str, ...], end: str) -> Model:
    """Return SmolLM2's tokenizer with the template and the control tokens of another family."""
    from tokenizers import AddedToken

    model = load_model(template, model_type)
    tokens = [AddedToken(one, special=True, normalized=False) for one in special]
    tokens += [AddedToken(one, special=False, normalized=one.startswith("</")) for one in plain]
    model.tokenizer.add_tokens(tokens)
    model.tokenizer.eos_token = end
    return model


def sentencepiece(template: str, end: str, prefix: str = "first", gap: int = 0) -> Model:
    """Return a tokenizer as that of Llama 2 and Gemma: bytes for unknown letters, and tokens of HTML and white space.

    Args:
        prefix: `first` for a space before the text alone; `legacy` for one after each control token too.
        gap: ids between the vocabulary and the added tokens.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    shown = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix == "legacy":
        steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        tokenizer.normalizer = normalizers.Sequence(steps)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([*shown, decoders.Strip(" ", 1, 0)])
    base = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    texts = ["the agent walks to the north and takes the key", "Action: one Two? Three? Be brief. <|end|> </s>"] * 40
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=500, special_tokens=base, show_progress=False))
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    special = ("[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>", "<|end|>", "<|user|>", "<|assistant|>")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for index, text in enumerate((*special, "<|system|>", "<table>", "</td>", "  ", "\n\n", *CALLS)):
        token = {"id": len(data["model"]["vocab"]) + gap + index, "content": text, "special": text in special, **flags}
        data["added_tokens"].append(token)
    fast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(data)), eos_token=end)
    fast.chat_template = template
    return Model(fast, {}, "other")


def unigram() -> Model:
    """Return a tokenizer whose vocabulary of text has the control token `</s>`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = [(letter, -4.0) for letter in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ:.?</>[]\n\u2581"]
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *letters], 0, False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace("\u2581", prepend_scheme="never")
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")
    fast.chat_template = MISTRAL
    return Model(fast, {}, "other")


def _chatml(name: str, plain: tuple[str, ...] = CALLS) -> Model:
    return smollm2_with((TEMPLATES / f"{name}.jinja").read_text(), name.partition(".")[0], (), plain, "<|im_end|>")


def _added(template: str, end: str, *special: str) -> Model:
    return smollm2_with(template, "other", (*special, end), CALLS, end)


_DEEPSEEK = [f"<\uff5c{name}\uff5c>" for name in ("system", "user", "Assistant", "begin\u2581of\u2581sentence")]
FAMILIES: Mapping[str, Callable[[], Model]] = {
    "smollm2": load_model,
    "qwen2.5": lambda: _chatml("qwen2.5", CALLS[:2]),
    "qwen3": lambda: _chatml("qwen3"),
    "llama3": lambda: _added(LLAMA3, "<|eot_id|>", "<s>", "<|start_header_id|>", "<|end_header_id|>"),
    "phi": lambda: _added(PHI, "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"),
    "gemma": lambda: _added(GEMMA, "<end_of_turn>", "<start_of_turn>"),
    "mistral": lambda: _added(MISTRAL, "</s>", "[INST]", "[/INST]"),
    "deepseek": lambda: _added(DEEPSEEK, "<\uff5cend\u2581of\u2581sentence\uff5c>", *_DEEPSEEK),
    "gemma, sentencepiece": lambda: sentencepiece(GEMMA, "<end_of_turn>"),
    "phi, sentencepiece": lambda: sentencepiece(PHI, "<|end|>", "legacy"),
    "mistral, sentencepiece": lambda: sentencepiece(MISTRAL, "</s>", gap=9),
}
"""Families by name."""
REFUSED = ("deepseek", "gemma, sentencepiece", "phi, sentencepiece", "mistral, sentencepiece")
"""Families that no token builder of verl continues, since they decode to other spaces than their template has."""


@cache
def family_model(name: str) -> Model:
    """Return the tokenizer of a family, made once."""
    return FAMILIES[name]()
