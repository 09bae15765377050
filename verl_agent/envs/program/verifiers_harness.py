"""Harness of verifiers 0.4.0 (API v1) that asks the model once and then waits for the caller's next message.

verifiers' own harnesses are programs that `uv` installs for each episode. This one needs no process and no network. It
calls no tools: the model's calls go to the caller, who answers them.
"""

from collections.abc import Mapping
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.runtimes import ProgramResult

from verl_agent.envs.machine.proxies import proxy_of

__all__ = ["TOOLS", "ReplyHarness"]

TOOLS = "verl_agent_tools"
"""Key of a trace's info: `tools` in OpenAI's format, or None, and `parallel`."""


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
        body: dict[str, Any] = {"model": ctx.model, "messages": messages}
        offered = trace.info.get(TOOLS) or {}
        if offered.get("tools"):
            body |= {"tools": offered["tools"], "parallel_tool_calls": offered["parallel"]}
        # Without a timeout: the episode's own limits end it.
        async with httpx.AsyncClient(timeout=None, proxy=proxy_of(endpoint), trust_env=False) as client:
            answer = await client.post(
                f"{endpoint}/chat/completions",
                json=body,
                headers={"Authorization": f"Bearer {secret}"},
            )
        return ProgramResult(int(answer.is_error), "", answer.text if answer.is_error else "")
