"""Dialects of requests, and the table of their fields: what the gateway does with them.

A field is *used* (it is part of the conversation or of the answer's form), *honoured* (the policy or the gateway keeps
to it, and the tokens stay the policy's own), *ignored* (it changes nothing that the policy writes, or the recipe sets
it), or *refused* with a remedy, but for the values that change nothing.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from verl_agent.envs.program.requests import Answer, Request, RequestRefused
from verl_agent.errors import did_you_mean

logger = logging.getLogger(__name__)
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Field:
    """Treatment of one field.

    Attributes:
        harmless: values of a refused field that change nothing; null, "", [], {}, 0 and false are always harmless.
        remedy: next step for a refused field.
    """

    use: Literal["used", "honoured", "ignored", "refused"]
    harmless: tuple[Any, ...] = ()
    remedy: str = ""


USED, HONOURED, IGNORED = Field("used"), Field("honoured"), Field("ignored")
ONE_REPLY = Field("refused", (1,), "Leave it out, and send a request for each reply.")
NO_LOG_PROBS = Field("refused", (), "Leave it out: the record of the run has the log-probs.")
TOOLS_INSTEAD = Field("refused", ("none", "auto"), "Use tools and tool_choice.")
NO_BIAS = Field("refused", (), "Leave it out: the policy would not be sampled from itself.")
TEXT_ONLY = Field("refused", (["text"],), "Leave it out: the policy reads and writes text.")
OWN_TOOLS = Field("refused", (), "Give the policy a function of the program for it.")
OWN_SUMMARY = Field("refused", (), "Ask for a summary by a message.")
NOT_STORED = Field("refused", (), "Send the messages with the request.")


def _table(**names: str | Field) -> dict[str, Field]:
    """Return a table from lists of names and single fields."""
    uses = {"used": USED, "honoured": HONOURED, "ignored": IGNORED}
    listed = {name: uses[use] for use, text in names.items() if isinstance(text, str) for name in text.split()}
    return listed | {name: one for name, one in names.items() if isinstance(one, Field)}


FIELDS: Mapping[str, Mapping[str, Field]] = {
    "chat completions": _table(
        used="messages model stream stream_options tools",
        honoured="max_completion_tokens max_tokens parallel_tool_calls response_format stop tool_choice",
        ignored="cache_control chat_template_kwargs client_metadata frequency_penalty metadata min_p prediction "
        "presence_penalty prompt_cache_key prompt_cache_options prompt_cache_retention reasoning reasoning_effort "
        "repetition_penalty safety_identifier seed service_tier store temperature thinking top_k top_p user verbosity",
        n=ONE_REPLY,
        best_of=ONE_REPLY,
        logprobs=NO_LOG_PROBS,
        top_logprobs=NO_LOG_PROBS,
        functions=TOOLS_INSTEAD,
        function_call=TOOLS_INSTEAD,
        logit_bias=NO_BIAS,
        modalities=TEXT_ONLY,
        audio=TEXT_ONLY,
        moderation=OWN_TOOLS,
        web_search_options=OWN_TOOLS,
    ),
    "messages": _table(
        used="messages model stream system thinking tools",
        honoured="max_tokens output_config output_format stop_sequences tool_choice",
        ignored="anthropic_beta betas billing_policy cache_control context_management diagnostics fallbacks "
        "fallback_credit_token inference_geo metadata service_tier speed temperature top_k top_p "
        "user_profile_id workspace_id",
        compaction=OWN_SUMMARY,
        container=OWN_TOOLS,
        mcp_servers=OWN_TOOLS,
        thread=NOT_STORED,
    ),
    "responses": _table(
        used="input instructions model previous_response_id stream tools",
        honoured="max_output_tokens parallel_tool_calls text tool_choice",
        ignored="access_programs client_metadata context_management image include max_tool_calls metadata "
        "prompt_cache_key prompt_cache_options prompt_cache_retention reasoning safety_identifier service_tier store "
        "stream_options temperature top_p truncation user",
        top_logprobs=NO_LOG_PROBS,
        conversation=NOT_STORED,
        prompt=NOT_STORED,
        background=NOT_STORED,
        moderation=OWN_TOOLS,
    ),
}
"""Treatment of each field by dialect."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """API of a vendor: reading of requests, and writing of answers, whole and as events of a stream.

    Attributes:
        name: key of `FIELDS`.
    """

    name: str
    parse: Callable[[Any], Request]
    write: Callable[[Answer], dict[str, Any]]
    stream: Callable[[Answer, bool], Iterable[str]]

    def read(self, body: Any) -> Request:
        """Return a request.

        Raises:
            RequestRefused: it has a field, a message or another part that is not supported.
        """
        check_fields(self.name, body)
        return replace(self.parse(body), model=str(body.get("model") or ""), stream=bool(body.get("stream")))


def check_fields(dialect: str, body: Any) -> None:
    """Refuse fields that the gateway cannot keep to, and warn once a run of fields that nobody knows.

    Raises:
        RequestRefused: the body is no object, or has such a field.
    """
    if not isinstance(body, Mapping):
        raise RequestRefused(f"the body of a request of {dialect} must be a JSON object.")
    for name, value in body.items():
        known = FIELDS[dialect].get(name)
        if known is None:
            warn_once(f"{dialect}: nobody knows the field {name!r:.100}; it is ignored. {_suggestion(dialect, name)}")
        elif known.use == "refused" and value not in (None, "", [], {}, 0) and value not in known.harmless:
            raise RequestRefused(f"{name}={json.dumps(value):.200} is not supported. {known.remedy}", field=name)


def warn_once(text: str) -> None:
    """Log a warning once in this process."""
    if text not in _warned and len(_warned) < 1000:
        _warned.add(text)
        logger.warning("%s", text)


def _suggestion(dialect: str, name: str) -> str:
    return did_you_mean(name, FIELDS[dialect], 100)
