"""Checks that verl's token builders and the chat template of a model agree.

verl's continuous-token builders add messages to a token sequence without rendering the earlier ones again.
The functions here compare them with the template's own rendering before a run starts.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder, QwenContinuousTokenBuilder
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from verl_agent.agents.base import Agent
from verl_agent.agents.functions import example_arguments
from verl_agent.envs.call_error import BROKEN_JSON, NO_CALL
from verl_agent.envs.call_formats import CALL_FORMATS
from verl_agent.errors import ConfigError
from verl_agent.models.hf import missing_template
from verl_agent.rollout.control_tokens import ContentTokenizer
from verl_agent.rollout.tokens import render_conversation
from verl_agent.types import Message

EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
"""Text that templates of thinking models add to a generation prompt and drop from earlier turns."""

CHOOSE_ANOTHER_AGENT = (
    "Set agent.options.calls=smollm2, whose prompt lists the functions, choose another agent.name, such as react, or a "
    "model whose template supports tools, such as Qwen3."
)

PROBE: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "Action: one"},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "Action: two"},
    {"role": "user", "content": "Three?"},
]
"""Conversation that `choose_builder` renders in both ways."""


def choose_builder(
    tokenizer: Any, model_type: str | None, template_options: Mapping[str, Any]
) -> ContinuousTokenBuilder:
    """Return the continuous-token builder that renders `PROBE` as the chat template does.

    Its tokenizer keeps the text of messages free of control tokens, see `verl_agent.rollout.control_tokens`.

    verl chooses a builder by the model's `model_type`, and a default one for types that it does not list. That default
    drops the newline after the end-of-turn token of ChatML templates: SmolLM2, whose type is `llama`, is one of them.

    Raises:
        ConfigError: the tokenizer has no template, every builder disagrees with it, it rejects the probe, or a text
            becomes a control token.
    """
    options, content = dict(template_options), ContentTokenizer(tokenizer)
    candidates = [create_continuous_token_builder(content, hf_model_type=model_type, chat_template_kwargs=options)]
    if "<|im_end|>" in tokenizer.get_vocab():
        candidates.append(QwenContinuousTokenBuilder(content, chat_template_kwargs=options))
    try:
        expected = _rendered_text(tokenizer, PROBE, options)
    except TemplateError as error:  # such as `System role not supported`
        raise ConfigError(
            f"the chat template of this model (model_type={model_type!r}) does not render a system message and turns "
            f"of user and assistant: {error}. Use a model with a ChatML template."
        ) from error
    except ValueError as error:
        raise missing_template(error) from error
    disagreeing = []
    for builder in candidates:
        try:
            built = without_empty_thoughts(tokenizer.decode(render_conversation(builder, tokenizer, PROBE).ids))
        except (TemplateError, ValueError, TypeError) as error:  # the template changes earlier messages after a later
            built = str(error)  # one, or refuses the part that the builder renders; or no token ends a turn
        if built == expected:
            _check_content(content, builder, model_type)
            return builder
        disagreeing.append(f"{type(builder).__name__}: {built!r}")
    end = _end_of_reply(content, expected)
    if end and end != tokenizer.eos_token:
        raise ConfigError(
            f"the chat template of this model (model_type={model_type!r}) ends replies with {end!r}, and its tokenizer "
            f"has eos_token={tokenizer.eos_token!r}. Use a copy of the folder with eos_token={end!r} in "
            f"tokenizer_config.json and eos_token_id={tokenizer.convert_tokens_to_ids(end)} in generation_config.json."
        )
    raise ConfigError(
        f"no token builder of verl agrees with the chat template of this model (model_type={model_type!r}). "
        f"The template renders {expected!r}; {'; '.join(disagreeing)}. Use a model with a ChatML template, or register "
        "a builder for it."
    )


def _end_of_reply(content: ContentTokenizer, rendered: str) -> str:
    """Return the control token that follows the first reply of `PROBE` in its rendering; empty without one."""
    after = rendered.partition(PROBE[2]["content"])[2]
    return max((one for one in content.control.strings.values() if after.startswith(one)), key=len, default="")


def _check_content(content: ContentTokenizer, builder: ContinuousTokenBuilder, model_type: str | None) -> None:
    """Check that messages which spell the control tokens of the model have the same turns as `PROBE`.

    Raises:
        ConfigError: a text becomes a control token.
    """
    control, found = content.control, content.control.unprotected()
    spelled = "".join(f" {one}" for one in control.strings.values())
    hostile: list[Message] = [{"role": one["role"], "content": f"{one['content']}{spelled}."} for one in PROBE]

    def turns(messages: Sequence[Message]) -> list[int]:
        ids = render_conversation(builder, content, messages).ids
        return [index for index in ids if index in control.strings]

    try:
        if not found and turns(hostile) != turns(PROBE):
            found = ["those of the chat template"]
    except ValueError as error:
        found = [str(error)]
    if found:
        raise ConfigError(
            f"the tokenizer of this model (model_type={model_type!r}, {type(content.tokenizer).__name__}) takes "
            f"text for control tokens: {', '.join(found[:5])}. A page or a tool could write turns of its own. Use a "
            "model that has a tokenizer.json of the `tokenizers` library."
        )


def describe_role_marks(tokenizer: Any, template_options: Mapping[str, Any]) -> str:
    """Return a warning if the chat template marks replies by ordinary text, which a page can write, too; else ""."""
    try:
        text: str = tokenizer.apply_chat_template(PROBE[:3], tokenize=False, **template_options)
    except (TemplateError, ValueError):
        return ""  # `choose_builder` explains it
    mark = text.partition(PROBE[1]["content"])[2].partition(PROBE[2]["content"])[0]
    if any(one in mark for one in ContentTokenizer(tokenizer).control.strings.values()):
        return ""
    return (
        f"the chat template marks replies by ordinary text, {mark!r}: a page or a tool can write turns in the model's "
        "name. Play environments whose texts you trust, or a model whose marks are control tokens, such as ChatML's"
    )


def check_tools(
    tokenizer: Any, builder: ContinuousTokenBuilder, agent: Agent, template_options: Mapping[str, Any]
) -> None:
    """Check that the chat template shows the model an agent's functions, in the format that the agent reads.

    Raises:
        ConfigError: the template omits the functions, writes calls in a format that the agent does not read, or
            renders the answer of a function unlike the token builder.
    """
    tools = agent.tools
    if not tools:
        return
    conversation: list[Message] = [*PROBE[:3], {"role": "tool", "content": "Done."}]
    function = {"name": tools[0]["function"]["name"], "arguments": example_arguments(tools[0])}
    try:
        prompt = tokenizer.apply_chat_template(PROBE[:2], tools=tools, tokenize=False, **template_options)
        call = _rendered_call(tokenizer, function, tools, template_options).removeprefix(prompt)
        expected = _rendered_text(tokenizer, conversation, template_options, tools)
    except (TemplateError, ValueError, TypeError) as error:
        raise ConfigError(
            f"the chat template of this model refuses functions: {error}. {CHOOSE_ANOTHER_AGENT}"
        ) from error
    names = [tool["function"]["name"] for tool in tools]
    if not all(re.search(rf'"name": "{name}"|<name>{name}</name>', prompt) for name in names):
        raise ConfigError(f"the chat template of this model does not list functions. {CHOOSE_ANOTHER_AGENT}")
    if not _understands(agent, call):
        known = [name for name in CALL_FORMATS if _reads(name, call)]
        remedy = f"Set agent.options.calls={known[0]}." if known else CHOOSE_ANOTHER_AGENT
        raise ConfigError(
            f"the chat template of this model writes the call of a function as {call!r}, which the agent does not "
            f"read. {remedy}"
        )
    built = tokenizer.decode(render_conversation(builder, tokenizer, conversation, tools).ids)
    if without_empty_thoughts(built) != expected:
        raise ConfigError(
            f"verl's token builder renders a function's answer unlike the chat template of this model: {built!r}, not "
            f"{expected!r}. {CHOOSE_ANOTHER_AGENT}"
        )


def _rendered_call(
    tokenizer: Any, function: dict[str, Any], tools: list[dict[str, Any]], template_options: Mapping[str, Any]
) -> str:
    """Return the conversation in which the template writes a call of a function."""
    call = {"id": "call00000", "type": "function", "function": function}
    messages = [*PROBE[:2], {"role": "assistant", "content": "", "tool_calls": [call]}]
    text: str = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **template_options)
    return text


def _understands(agent: Agent, call: str) -> bool:
    """Return True if an agent reads the call that a template has written, whatever it thinks of the arguments."""
    unread = {NO_CALL, BROKEN_JSON}
    return any(
        one.action is not None or (one.errors and not unread & set(one.errors)) for one in agent.read_reply(call)
    )


def _reads(calls: str, text: str) -> bool:
    """Return True if a format reads the call that a template has written."""
    format_ = CALL_FORMATS[calls]
    return not format_.listing and any(one.error is None and one.arguments for one in format_.read(text))


def _rendered_text(
    tokenizer: Any,
    messages: Sequence[Message],
    template_options: Mapping[str, Any],
    tools: list[dict[str, Any]] | None = None,
) -> str:
    text: str = tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=True, **template_options
    )
    return without_empty_thoughts(text)


def without_empty_thoughts(text: str) -> str:
    """Return the text without empty thinking blocks, which templates drop from earlier turns."""
    return text.replace(EMPTY_THOUGHT, "")
