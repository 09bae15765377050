"""Token builder that continues each chat template of a folder, and a trial of texts that spell its control tokens.

    python -m tests.bench.chat_templates FOLDER

For the templates of many families: `pip download --no-deps trl`, unpack the wheel, and take trl/chat_templates.
"""

import re
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from jinja2 import TemplateError

from tests.support.models import write_byte_tokenizer
from verl_agent.agents.functions import FunctionCalls
from verl_agent.envs.action_format import LineFormat
from verl_agent.errors import ConfigError
from verl_agent.rollout.chat_template import check_tools, choose_builder
from verl_agent.rollout.control_tokens import ContentTokenizer

ENDS = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|return|>")


def answer(template: str, kind: str) -> str:
    """Return `text` if contents stay text (`other` for contents of several parts), and the builder of a template."""
    tokenizer = write_byte_tokenizer(Path(mkdtemp()), ["a b"], vocabulary=300)
    special = sorted(set(re.findall(r"<\|[^|<>]+\|?>|</?[a-z_]+>", template)))
    end = next((one for one in ENDS if one in template), ENDS[1])
    tokenizer.add_special_tokens({"additional_special_tokens": special, "eos_token": end})
    tokenizer.chat_template = template
    return f"{'text' if text_stays_text(tokenizer) else 'other'}  {builder_for(tokenizer, kind)}"


def text_stays_text(tokenizer: Any) -> bool:
    """Return True if a template renders contents that spell control tokens with those of other contents."""
    content, roles = ContentTokenizer(tokenizer), ("system", "user", "assistant", "user")
    spelled = " ".join(content.control.strings.values())

    def turns(text: str) -> list[int]:
        messages = content.hide_messages([{"role": role, "content": text} for role in roles])
        for chosen in (messages, messages[1:]):
            with suppress(TemplateError):  # no system message, or contents of several parts
                return [one for one in content.apply_chat_template(chosen) if one in content.control.strings]
        return []

    return not content.control.unprotected() and turns("a") == turns(f"a {spelled} b") != []


def builder_for(tokenizer: Any, kind: str) -> str:
    """Return the builder that continues the template of a tokenizer, and whether it has functions."""
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
