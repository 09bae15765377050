"""Section `model.api`: a model behind an API, its key and its prices."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from verl_agent.errors import ConfigError
from verl_agent.sections import Needs, OnResume, section, settings

Price = Annotated[float, Field(ge=0)]
VENDORS = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": ("https://api.anthropic.com", "ANTHROPIC_API_KEY"),
}
"""Base URL and usual variable of the key of each vendor, by `kind`."""
KINDS = "Set model.api.kind to openai (any server with chat completions) or to anthropic."
OWN_FIELDS = {
    "max_completion_tokens": "model.api.max_output_tokens",
    "max_tokens": "model.api.max_output_tokens",
    "messages": "section agent",
    "model": "model.api.name",
    "n": "evaluation.samples",
    "seed": "evaluation.seed",
    "system": "section agent",
    "temperature": "evaluation.temperature",
    "tools": "agent.name=tools",
    "top_p": "evaluation.top_p",
}
"""Fields of a request that other settings determine, and these settings."""
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
SECRET = re.compile(r"api[_-]?key|authorization|password|secret|credential|bearer|(^|[_-])(token|key)$", re.IGNORECASE)
"""Names of fields that hold keys; `max_tokens` and `logit_bias` are none."""


@settings("model.api.prices", base="agent_eval")
class Prices:
    """Prices in US dollars per million tokens. Without prices the package genai-prices is asked."""

    input: Price | None = None
    """Price of tokens that the model reads."""
    output: Price | None = None
    """Price of tokens that the model writes."""
    cached_input: Price | None = None
    """Price of tokens that the server reads from its cache; null for `input`."""
    cache_write: Price | None = None
    """Price of tokens that the server writes to its cache; null for `input`."""

    def __post_init__(self) -> None:
        if (self.input is None) != (self.output is None):
            raise ConfigError(
                f"model.api.prices has input={self.input} and output={self.output}. Set both, or neither to use the "
                "prices of the package genai-prices."
            )
        if self.input is None and (self.cached_input is not None or self.cache_write is not None):
            raise ConfigError("model.api.prices: cached_input and cache_write need input and output. Set these, too.")


@settings("model.api", Needs("model.api.kind", instead=KINDS), base="agent_eval")
class ApiSettings:
    """A model behind an API, for `verl-agent eval`; in place of `model.path`."""

    kind: Literal["openai", "anthropic"] | None = None
    """Protocol of the server: `openai` (chat completions: OpenAI, vLLM, SGLang, Ollama, llama.cpp and most vendors) or
    `anthropic` (messages); null for a model that `model.path` names."""
    name: str | None = None
    """Name of the model, as the server knows it."""
    base_url: str | None = None
    """URL of the server, without the path of a request, for example `http://127.0.0.1:8000/v1`; null for the vendor's
    own."""
    key_env: Annotated[str | None, OnResume("eval")] = None
    """Environment variable that holds the key; null for OPENAI_API_KEY or ANTHROPIC_API_KEY with the vendor's own
    server, and for no key with another one."""
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    """Most tokens of one reply, reasoning included; null for `episode.max_tokens_per_turn`."""
    timeout_s: Annotated[Annotated[float, Field(gt=0)], OnResume("eval")] = 300.0
    """Seconds that one request may take."""
    retries: Annotated[Annotated[int, Field(ge=0)], OnResume("eval")] = 6
    """Repetitions of a request after a rate limit, an error of the server, a timeout or a broken answer."""
    prices: Annotated[Prices, OnResume("eval")] = Field(default_factory=Prices)
    """Prices of the model, for the cost of each turn and for `evaluation.max_usd`."""
    options: Mapping[str, Any] = Field(default_factory=dict)
    """Further fields of the request, such as `reasoning_effort`."""

    def __post_init__(self) -> None:
        if self.base_url is not None:
            check_url(self.base_url)
        if self.key_env is not None and not VARIABLE.fullmatch(self.key_env):
            raise ConfigError(
                "model.api.key_env is not the name of an environment variable (its value is not shown, since it may be "
                "a key). Allowed: upper-case letters, digits and underscores, such as OPENAI_API_KEY."
            )
        for field in self.options:
            if field in OWN_FIELDS:
                raise ConfigError(f"model.api.options.{field} is not allowed. Set {OWN_FIELDS[field]}.")
            if field in ("stream", "stream_options"):
                raise ConfigError(f"model.api.options.{field} is not allowed. Replies are always read whole.")
        for path in _names(self.options):
            if SECRET.search(path.rpartition(".")[2]):
                raise ConfigError(
                    f"model.api.options.{path} is not allowed, since settings are recorded. The key comes from the "
                    "environment variable that model.api.key_env names."
                )
        if self.kind is not None and not self.name:
            raise ConfigError(f"model.api.name is missing. Set the name by which the server ({self.url}) knows it.")

    @property
    def url(self) -> str:
        """Base URL of the server, without a slash at its end."""
        return (self.base_url or VENDORS[self.kind or "openai"][0]).rstrip("/")

    @property
    def key_variable(self) -> str | None:
        """Environment variable that holds the key; None if no key is sent."""
        vendor = VENDORS[self.kind or "openai"]
        return self.key_env or (vendor[1] if self.url == vendor[0] else None)

    @property
    def label(self) -> str:
        """Name of the policy in records and folders, for example `openai:gpt-4o-mini`."""
        return f"{self.kind}:{self.name}"

    @property
    def source(self) -> str:
        """Origin of replies: the label, with the URL of a server that is not the vendor's own."""
        return self.label if self.url == VENDORS[self.kind or "openai"][0] else f"{self.label}@{self.url}"


def api_settings(values: Any, path: str | None) -> ApiSettings | None:
    """Build section `model.api`; None if `model.path` names the policy.

    Raises:
        ConfigError: a key or a value is not allowed, or both or neither of `model.path` and `model.api` name a model.
    """
    settings = section("model.api", ApiSettings, {} if values is None else values)
    if settings.kind is None:
        return None
    if path is not None:
        raise ConfigError(
            f"model.path={path!r} and model.api.kind={settings.kind!r} both name the policy. Leave one of them out."
        )
    return settings


def check_url(url: str) -> None:
    """Check a base URL; one with a password would end up in records.

    Raises:
        ConfigError: the URL has no host, another scheme than http and https, a user, or a query.
    """
    try:
        parts = urlsplit(url)
        has_user, host = "@" in parts.netloc, parts.hostname
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"model.api.base_url is not a URL: {error}.") from error
    if has_user or parts.query or parts.fragment:
        raise ConfigError(
            "model.api.base_url has a user, a password or a query (its value is not shown). Keys come from the "
            "environment variable that model.api.key_env names."
        )
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(
            f"model.api.base_url={url!r} is not allowed. Allowed: a URL such as http://127.0.0.1:8000/v1, or null for "
            "the vendor's own."
        )


def read_key(settings: ApiSettings) -> str | None:
    """Return the key from the environment; None if the server needs none.

    Raises:
        ConfigError: the variable is not set, or holds characters that no key has.
    """
    variable = settings.key_variable
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            f"the environment variable {variable} with the key for {settings.url} is not set. Run `export "
            f"{variable}=...`, or name another variable in model.api.key_env."
        )
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(f"the environment variable {variable} holds spaces or characters that no key has.")
    return key


def _names(value: object, path: str = "") -> Iterator[str]:
    """Return the paths of all fields in nested values, joined by dots."""
    entries = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in entries:
        inside = f"{path}.{name}" if path else str(name)
        yield inside
        yield from _names(inner, inside)
