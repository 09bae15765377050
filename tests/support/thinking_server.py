"""Server of a thinking model, which refuses a request whose earlier replies are not exactly those that it sent."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from aiohttp import web
from typing_extensions import override

from tests.support.model_server import Model, ModelServer, Said, binary_search

MISSING = "The `reasoning_content` in the thinking mode must be passed back to the API."


class ThinkingServer(ModelServer):
    """Adds reasoning, signatures and unknown fields to its replies, and wants them back.

    Args:
        forbidden: name of a field or of a type of block that it refuses in a message, in place of this; "" for none.
        wording: message of that refusal.
    """

    def __init__(self, model: Model = binary_search, forbidden: str = "", wording: str = "", **more: Any) -> None:
        super().__init__(model, **more)
        self.forbidden, self.wording = forbidden, wording
        self.sent: list[Any] = []
        self.refusals = 0
        self._numbers = count()

    @override
    async def _reply(
        self,
        request: web.Request,
        read: Callable[[dict[str, Any]], list[Said]],
        answer: Callable[[str | Mapping[str, Any], int], dict[str, Any]],
    ) -> web.StreamResponse:
        earlier = [message for message in (await request.json())["messages"] if message["role"] == "assistant"]
        told = self.wording if self.forbidden and f"'{self.forbidden}'" in str(earlier) else ""
        if not self.forbidden and any(message not in self.sent for message in earlier):
            told = MISSING
        if told:
            self.refusals += 1
            return web.json_response({"error": {"message": told, "type": "invalid_request_error"}}, status=400)

        def thinking(said: str | Mapping[str, Any], tokens: int) -> dict[str, Any]:
            value, number = answer(said, tokens), next(self._numbers)
            if "choices" in value:
                message = value["choices"][0]["message"]
                message |= openai_fields(number)
                for call in message.get("tool_calls", ()):
                    call |= {"id": f"call_{number}", "extra_content": {"google": {"thought_signature": f"s{number}"}}}
                self.sent.append({name: field for name, field in message.items() if name != "refusal"})
            else:
                value["content"] = anthropic_blocks(value["content"], number)
                self.sent.append({"role": "assistant", "content": value["content"]})
            return value

        return await super()._reply(request, read, thinking)


def openai_fields(number: int) -> dict[str, Any]:
    """Return the fields of a message of DeepSeek, OpenRouter and of a vendor nobody knows; a null field is no field."""
    details = [{"type": "reasoning.encrypted", "data": f"e{number}", "index": 0}]
    return {
        "reasoning_content": f"thought {number}",
        "reasoning": "",
        "reasoning_details": details,
        "vendor_state": {"deep": [number, {"null": None}]},
        "refusal": None,
    }


def anthropic_blocks(blocks: Sequence[Mapping[str, Any]], number: int) -> list[dict[str, Any]]:
    """Return blocks after those of reasoning, with fields that other versions of the protocol have."""
    thought = {"type": "thinking", "thinking": f"thought {number}", "signature": f"s{number}"}
    redacted = {"type": "redacted_thinking", "data": f"r{number}"}
    named = [{**block, "id": f"toolu_{number}"} if block["type"] == "tool_use" else dict(block) for block in blocks]
    return [thought, redacted, *({**block, "caller": {"type": "direct"}} for block in named)]
