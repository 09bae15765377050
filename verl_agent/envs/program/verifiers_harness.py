"""Harness of verifiers 0.4.0 (API v1) that asks the model once and then waits for the caller's next message.

verifiers' own harnesses are programs that `uv` installs for each episode. This one needs no process and no network. It
has no tools.
"""

from collections.abc import Mapping
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.runtimes import ProgramResult

__all__ = ["ReplyHarness"]


class ReplyHarness(vf.Harness[vf.HarnessConfig]):
    """Sends the conversation to the episode's endpoint and returns; see `verifiers.v1.Harness.launch`."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: vf.Trace,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        data: vf.TaskData,
    ) -> ProgramResult:
        """Ask for one reply."""
        if mcp_urls:
            return ProgramResult(1, "", f"this harness has no tools, but the task set has {', '.join(mcp_urls)}.")
        system, prompt = self.resolve_prompt(data)
        said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else map(message_to_wire, prompt or ())
        messages = [*([{"role": "system", "content": system}] if system else []), *said]
        async with httpx.AsyncClient(timeout=None) as client:  # the episode's own limits end it
            answer = await client.post(
                f"{endpoint}/chat/completions",
                json={"model": ctx.model, "messages": messages},
                headers={"Authorization": f"Bearer {secret}"},
            )
        return ProgramResult(int(answer.is_error), "", answer.text if answer.is_error else "")
