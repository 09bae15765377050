"""Client of rollout engines that continues a reply after an update of the weights has interrupted it."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient

SEEDS = ("seed", "sampling_seed")
"""Names of a request's seed among the sampling parameters of engines."""


@dataclass(slots=True)
class ReplyParts:
    """Parts of a reply; an update of the weights ends a part, and the next one follows the update.

    Attributes:
        versions: version of the weights and number of tokens of each part that has tokens.
        paused_s: seconds between the parts, and before the first one, in which the engine took no requests.
        requests: number of requests so far.
    """

    versions: list[tuple[int, int]] = field(default_factory=list)
    paused_s: float = 0.0
    requests: int = 0
    _ended_at: float = 0.0

    def begin(self, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sampling parameters of the next part."""
        if self.requests:
            self.paused_s += time.monotonic() - self._ended_at
        self.requests += 1
        return part_sampling(sampling, self.requests - 1)

    def end(self, output: Any) -> None:
        """Add a part.

        Args:
            output: verl's `TokenOutput` of the part.
        """
        self._ended_at = time.monotonic()
        self.paused_s += output.extra_fields.get("paused_s", 0.0)
        if output.token_ids:
            self.versions.append((output.extra_fields.get("global_steps") or 0, len(output.token_ids)))


class _RecordingClient(LLMServerClient):
    """verl's client, which also notes each request of a reply in its `ReplyParts`."""

    async def generate(
        self, request_id: str, *, sampling_params: dict[str, Any], parts: ReplyParts, **kwargs: Any
    ) -> Any:
        """See `LLMServerClient.generate`."""
        output = await super().generate(request_id, sampling_params=parts.begin(sampling_params), **kwargs)
        parts.end(output)
        return output


class ResumingClient(FullyAsyncLLMServerClient, _RecordingClient):
    """verl's `FullyAsyncLLMServerClient`, which continues interrupted replies, with the version of every token.

    By the order of bases, each request of `FullyAsyncLLMServerClient.generate` goes through `_RecordingClient`.
    """

    async def generate(self, request_id: str, **kwargs: Any) -> Any:
        """See `LLMServerClient.generate`; `extra_fields` also has `versions` and `paused_s` of `ReplyParts`."""
        parts = ReplyParts()
        output = await super().generate(request_id, parts=parts, **kwargs)
        output.extra_fields |= {"versions": parts.versions, "paused_s": parts.paused_s}
        return output


def part_sampling(sampling: Mapping[str, Any], part: int) -> dict[str, Any]:
    """Return the sampling parameters of one part of a reply, with its own seed.

    With the seed of the first part, the engine would draw the same random numbers again, so that later tokens would
    depend on how the first ones were drawn. Their log-probs would not be those of the policy.

    Args:
        sampling: parameters of the reply.
        part: number of the part, from 0.
    """
    own = dict(sampling)
    for name in SEEDS:
        if part and name in own:
            digest = hashlib.sha256(f"{own[name]}:{part}".encode()).digest()
            own[name] = int.from_bytes(digest[:4]) >> 1
    return own
