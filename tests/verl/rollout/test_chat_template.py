"""Tests of the choice of a token builder and of the check for tools in chat templates."""

import asyncio

import pytest
from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder, QwenContinuousTokenBuilder

from tests.support.fakes import ITEM, ScriptedEngine
from tests.support.tokens import (
    REPLIES,
    Chatter,
    check_tokens,
    load_model,
    play_tokens,
)
from verl_agent.agents.functions import FunctionCalls
from verl_agent.envs.action_format import LineFormat
from verl_agent.errors import ConfigError
from verl_agent.rollout.chat_template import check_tools, choose_builder, without_empty_thoughts
from verl_agent.rollout.episode import EpisodeLimits, play
from verl_agent.rollout.tokens import render_conversation
from verl_agent.types import Message

NO_NEWLINE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NUMBERED = NO_NEWLINE.replace("{{ m.content }}", "{{ loop.index }}. {{ m.content }}")
LAST_MARKED = NO_NEWLINE.replace("{{ m.content }}", "{% if loop.last %}now: {% endif %}{{ m.content }}")
ALTERNATING = (  # as Gemma 3
    "{% for m in messages %}{% if not loop.first and m.role == messages[loop.index0 - 1].role %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}" + NO_NEWLINE
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + NO_NEWLINE


def test_builder_that_agrees_with_the_template_is_chosen(model):
    builder = choose_builder(model.tokenizer, model.model_type, model.options)
    assert type(builder) is QwenContinuousTokenBuilder


def test_verls_default_builder_drops_the_newline_of_smollm2(smollm2):
    """Behaviour of verl 0.9.1 that `choose_builder` avoids; a failure means that verl has fixed it."""
    default = render_conversation(ContinuousTokenBuilder(smollm2.tokenizer), smollm2.tokenizer, messages())
    assert smollm2.tokenizer.decode(default.ids) == smollm2.rendered(messages()).replace(
        "hi<|im_end|>\n", "hi<|im_end|>"
    )


def test_verls_default_builder_is_chosen_if_it_agrees():
    model = load_model(NO_NEWLINE)
    assert type(choose_builder(model.tokenizer, "llama", {})) is ContinuousTokenBuilder
    check_tokens(play_tokens(model, REPLIES, 5))


@pytest.mark.parametrize("template", [NUMBERED, LAST_MARKED, ALTERNATING])
def test_template_that_no_builder_reproduces_raises_config_error(template):
    with pytest.raises(ConfigError, match=r"no token builder of verl agrees .*model_type='llama'"):
        choose_builder(load_model(template).tokenizer, "llama", {})


def test_template_without_a_system_role_raises_config_error_with_its_message():
    with pytest.raises(ConfigError, match=r"model_type='gemma'.* does not render a system message.*no system role\."):
        choose_builder(load_model(NO_SYSTEM).tokenizer, "gemma", {})


def messages() -> list[Message]:
    return [
        {"role": "system", "content": "Talk."},
        {"role": "user", "content": "Begin."},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "heard 1"},
    ]


def test_prompts_list_the_functions_and_observations_have_the_role_tool(model):
    agent = FunctionCalls(LineFormat())
    builder = choose_builder(model.tokenizer, model.model_type, model.options)
    if model.model_type == "llama":
        with pytest.raises(ConfigError, match=r"has no functions.*Choose another agent\.name"):
            check_tools(model.tokenizer, builder, agent.tools, model.options)
        return
    check_tools(model.tokenizer, builder, agent.tools, model.options)
    call = '<tool_call>\n{"name": "act", "arguments": {"action": "go"}}\n</tool_call>'
    engine = ScriptedEngine(model.tokenizer, [call] * 3)
    policy = model.policy(engine)
    policy.tokens.tools = agent.tools
    episode = asyncio.run(play(ITEM, Chatter(turns=3), agent, policy, EpisodeLimits(3)))
    assert [turn.action for turn in episode.turns] == ["go"] * 3
    rendered = model.tokenizer.apply_chat_template(
        episode.messages[:-2], tools=agent.tools, tokenize=False, add_generation_prompt=True, **model.options
    )
    assert without_empty_thoughts(model.tokenizer.decode(engine.prompts[-1])) == without_empty_thoughts(rendered)
    assert "<tool_response>" in rendered
