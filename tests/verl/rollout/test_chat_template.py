"""Tests of the choice of a token builder and of the check for tools in chat templates."""

import asyncio
from functools import partial

import pytest
from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder, QwenContinuousTokenBuilder

from tests.support.fakes import ITEM, ScriptedEngine
from tests.support.tokens import (
    REPLIES,
    Chatter,
    Model,
    check_tokens,
    load_model,
    play_tokens,
)
from verl_agent.agents.functions import FunctionCalls
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.call_formats import CALL_FORMATS
from verl_agent.errors import ConfigError
from verl_agent.messages import expanded
from verl_agent.rollout.chat_template import check_tools, choose_builder, describe_role_marks, without_empty_thoughts
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.limits import template_tokens
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
LLAMA = (  # as Llama 3.1: functions in the first user message, observations as JSON text
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|><ipython>\n{{ m.content | tojson }}"
    "{% else %}<|im_start|>{{ m.role }}\n{% if tools and loop.index0 == 1 %}"
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}{{ m.content }}{% if m.tool_calls %}"
    """{% set f = m.tool_calls[0].function %}{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}"""
    "{% endif %}{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN_CODER = (  # functions, calls and results as in chat_template.jinja of Qwen/Qwen3-Coder-30B-A3B-Instruct
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or loop.previtem.role != 'tool' %}<|im_start|>user\n{% endif %}"
    "<tool_response>\n{{ m.content }}\n</tool_response>\n"
    "{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if loop.first and tools %}{% for t in tools %}"
    "\n<function>\n<name>{{ t.function.name }}</name>\n</function>{% endfor %}{% endif %}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for key, value in c.function.arguments | items %}<parameter={{ key }}>\n"
    "{{ value | tojson if value is mapping or (value is sequence and value is not string) else value | string }}"
    "\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
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


def test_a_tokenizer_without_a_chat_template_raises_config_error_naming_the_setting():
    tokenizer = load_model().tokenizer
    tokenizer.chat_template = None
    for use in (partial(choose_builder, tokenizer, "llama", {}), partial(template_tokens, tokenizer)):
        with pytest.raises(ConfigError, match=r"chat_template is not set .* Set actor_rollout_ref\.model\.custom_"):
            use()
    assert describe_role_marks(tokenizer, {}) == ""


def test_a_template_that_refuses_turns_raises_config_error_where_their_tokens_are_counted():
    with pytest.raises(ConfigError, match=r"does not render turns: no turns\. Use another model"):
        template_tokens(load_model("{{ raise_exception('no turns') }}").tokenizer)


@pytest.mark.parametrize(("template", "model_type"), [("", "llama"), ("", "qwen2"), (NO_NEWLINE, "llama")])
def test_a_tokenizer_that_ends_replies_unlike_its_template_is_told_which_token_to_set(template, model_type):
    """As Qwen2.5's base models do."""
    tokenizer = load_model(template).tokenizer
    end = tokenizer.eos_token_id
    tokenizer.eos_token = "<|endoftext|>"
    with pytest.raises(ConfigError) as error:
        choose_builder(tokenizer, model_type, {})
    assert "ends replies with '<|im_end|>', and its tokenizer has eos_token='<|endoftext|>'" in str(error.value)
    assert f"eos_token='<|im_end|>' in tokenizer_config.json and eos_token_id={end} in gen" in str(error.value)


def test_a_tokenizer_without_an_end_of_turn_is_told_which_token_to_set():
    tokenizer = load_model().tokenizer
    tokenizer.eos_token = None
    with pytest.raises(ConfigError, match=r"ends replies with '<\|im_end\|>', and its tokenizer has eos_token=None"):
        choose_builder(tokenizer, "llama", {})


VICUNA = (
    "{% for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }} {% elif m.role == 'assistant' %}"
    "ASSISTANT: {{ m.content }}<|im_end|>{% else %}{{ m.content }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


@pytest.mark.parametrize(("template", "mark"), [("", ""), (NO_NEWLINE, ""), (LLAMA, ""), (VICUNA, "' ASSISTANT: '")])
def test_a_template_that_marks_replies_by_text_is_named(template, mark):
    warning = describe_role_marks(load_model(template).tokenizer, {})
    assert bool(warning) == bool(mark) and mark in warning


def messages() -> list[Message]:
    return [
        {"role": "system", "content": "Talk."},
        {"role": "user", "content": "Begin."},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "heard 1"},
    ]


def play_calls(model: Model, calls: str, several: int = 1) -> tuple[str, str]:
    """Play three turns with function calls; return what the engine read last, and the template's own rendering."""
    agent = FunctionCalls(LineFormat(), calls=calls, max_calls=several)
    builder = choose_builder(model.tokenizer, model.model_type, model.options)
    check_tools(model.tokenizer, builder, agent, model.options)
    engine = ScriptedEngine(
        model.tokenizer, ["\n".join([CALL_FORMATS[calls].write("act", {"action": "go"})] * several)] * 3
    )
    policy = model.policy(engine)
    policy.tokens.tools = agent.tools
    episode = asyncio.run(play_episode(ITEM, Chatter(turns=3 * several), agent, policy, EpisodeLimits(3)))
    assert [turn.action for turn in episode.turns] == ["go"] * 3
    rendered = model.tokenizer.apply_chat_template(
        expanded(episode.messages[:-2]), tools=agent.tools, tokenize=False, add_generation_prompt=True, **model.options
    )
    return without_empty_thoughts(model.tokenizer.decode(engine.prompts[-1])), without_empty_thoughts(rendered)


def test_prompts_list_the_functions_and_observations_have_the_role_tool(model):
    calls = "smollm2" if model.model_type == "llama" else "hermes"
    read, rendered = play_calls(model, calls)
    assert read == rendered
    assert "<tool_response>" in rendered and '"name": "act"' in rendered


def test_llamas_template_reads_and_writes_its_own_calls():
    read, rendered = play_calls(load_model(LLAMA), "llama3")
    assert read == rendered
    assert '{"name": "act", "parameters": {"action": "go"}}<|im_end|>' in rendered and "<ipython>" in rendered


@pytest.mark.parametrize("several", [1, 2])
def test_qwen3_coders_template_reads_and_writes_its_own_calls(several):
    read, rendered = play_calls(load_model(QWEN_CODER), "qwen3_coder", several)
    assert read == rendered
    assert "<function=act>\n<parameter=action>\ngo\n</parameter>" in rendered and "<name>act</name>" in rendered


def test_several_answers_are_messages_of_their_own(model):
    calls = "smollm2" if model.model_type == "llama" else "hermes"
    read, rendered = play_calls(model, calls, 2)
    assert read == rendered and rendered.count("<tool_response>") == 4


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (QWEN_CODER, r"Set agent\.options\.calls=qwen3_coder\."),
        (LLAMA, r"writes the call of a function as .*\. Set agent\.options\.calls=llama3\."),
        (LLAMA.replace("parameters", "args"), r"does not read\. Set agent\.options\.calls=smollm2, whose prompt lists"),
        ("", r"does not list functions\. Set agent\.options\.calls=smollm2"),
    ],
)
def test_a_template_with_another_format_is_refused_with_the_setting_for_it(template, message):
    model = load_model(template)
    builder = choose_builder(model.tokenizer, model.model_type, model.options)
    with pytest.raises(ConfigError, match=message):
        check_tools(model.tokenizer, builder, FunctionCalls(LineFormat()), model.options)
