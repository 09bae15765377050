"""Which token builder continues each chat template of a folder: `python -m tests.bench.chat_templates FOLDER`.

For the templates of many families: `pip download --no-deps trl`, unpack the wheel, and take trl/chat_templates.
"""

import re
import sys
from pathlib import Path
from tempfile import mkdtemp

from tests.support.models import write_byte_tokenizer
from verl_agent.agents.functions import FunctionCalls
from verl_agent.envs.action_format import LineFormat
from verl_agent.errors import ConfigError
from verl_agent.rollout.chat_template import check_tools, choose_builder

ENDS = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|return|>")


def answer(template: str, kind: str) -> str:
    """Return the builder that continues a template, and whether it has functions as agents read them."""
    tokenizer = write_byte_tokenizer(Path(mkdtemp()), ["a b"], vocabulary=300)
    special = sorted(set(re.findall(r"<\|[^|<>]+\|?>|</?[a-z_]+>", template)))
    end = next((one for one in ENDS if one in template), ENDS[1])
    tokenizer.add_special_tokens({"additional_special_tokens": special, "eos_token": end})
    tokenizer.chat_template = template
    try:
        builder = choose_builder(tokenizer, kind, {})
    except ConfigError as error:
        return f"refused: {error}"
    for calls in ("hermes", "llama3"):
        try:
            check_tools(tokenizer, builder, FunctionCalls(LineFormat(), calls=calls), {})
        except ConfigError as error:
            reason = str(error)
        else:
            return f"{type(builder).__name__}, functions as {calls}"
    return f"{type(builder).__name__}, no functions: {reason}"


if __name__ == "__main__":
    for path in sorted(Path(sys.argv[1]).glob("*.jinja")):
        family = re.match(r"[a-z]+\d?", path.stem)
        kind = {"qwen2": "qwen2", "qwen3": "qwen3", "gemma4": "gemma4"}.get(family[0] if family else "", "llama")
        sys.stdout.write(f"{path.stem:32} {answer(path.read_text(), kind)[:160]}\n")
