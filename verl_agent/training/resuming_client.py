"""Client of rollout engines that continues a reply after an update of the weights has interrupted it."""

import time
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient


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

    def begin(self) -> None:
        """Begin the next part."""
        if self.requests:
            self.paused_s += time.monotonic() - self._ended_at
        self.requests += 1

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

    @override
    async def generate(self, request_id: str, *, parts: ReplyParts, **kwargs: Any) -> Any:
        parts.begin()
        output = await super().generate(request_id, **kwargs)
        parts.end(output)
        return output


class ResumingClient(FullyAsyncLLMServerClient, _RecordingClient):
    """verl's `FullyAsyncLLMServerClient`, which continues interrupted replies, with the version of every token.

    All parts of a reply have the same seed: an engine draws by seed and position, see `seeded_sampling.py`.
    By the order of bases, each request of `FullyAsyncLLMServerClient.generate` goes through `_RecordingClient`.
    """

    @override
    async def generate(self, request_id: str, **kwargs: Any) -> Any:
        """`extra_fields` also has `versions` and `paused_s` of `ReplyParts`."""
        parts = ReplyParts()
        output = await super().generate(request_id, parts=parts, **kwargs)
        output.extra_fields |= {"versions": parts.versions, "paused_s": parts.paused_s}
        return output
