"""SGLang as rollout engine: its kernel packages' stand-ins on a CPU, and verl's server with fixes."""

SPARE_TOKENS = 6
"""Tokens by which SGLang's context has to exceed the context that requests may fill. SGLang 0.5.12 keeps one token free
for a request and another one for its reply (managers/scheduler.py:1883), and five for its prompt
(managers/tp_worker.py:308). The last token of a full context is sampled but never read, so no position exceeds the
model's."""
LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
"""Environment variable with which SGLang accepts a context above the model's, if it is `1`."""
