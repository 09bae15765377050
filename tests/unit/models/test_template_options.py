"""Keyword arguments of chat templates: those that no template reads are refused, and nothing else."""

from typing import Any

import pytest

from tests import ROOT
from verl_agent.errors import ConfigError
from verl_agent.models.hf import check_template_options

QWEN3 = (ROOT / "tests/data/templates/qwen3.jinja").read_text()


class Tokenizer:
    def __init__(self, chat_template: Any) -> None:
        self.chat_template = chat_template

    def apply_chat_template(self, conversation: Any, tools: Any = None, **others: Any) -> str:
        return str(others)


@pytest.mark.parametrize("template", [QWEN3, {"default": QWEN3, "rag": "{{ documents }}"}])
def test_a_misspelled_keyword_argument_of_the_chat_template_is_refused_with_the_names_that_it_reads(template):
    message = (
        r"^data\.apply_chat_template_kwargs\.enable_thinkng has no effect.* messages.*Did you mean 'enable_thinking'"
    )
    with pytest.raises(ConfigError, match=message):
        check_template_options(Tokenizer(template), ["enable_thinking", "enable_thinkng"])


@pytest.mark.parametrize(
    ("template", "option"),
    [
        (QWEN3, "tools"),
        ({"default": "{{ messages }}", "rag": "{{ documents }}"}, "documents"),
        ("{% if think is not defined %}{% set think = true %}{% endif %}{{ think }}", "think"),
        ("{%- generation -%}{{ think }}{%- endgeneration -%}", "think"),
        ("{% unknown_tag %}", "think"),
        (None, "think"),
    ],
)
def test_names_that_a_template_reads_or_may_read_are_allowed(template, option):
    check_template_options(Tokenizer(template), [option])
