"""Test a policy behind an API whose requests have limits of their own: texts that end a reply, and its most tokens."""

import asyncio
from typing import Any

import pytest

from verl_agent.envs.model_api.chat import ApiReply, ChatRequest
from verl_agent.evaluation.api_policy import ApiPolicy
from verl_agent.messages import LimitedMessages, Message, ReplyLimits
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.rollout.settings import TokenBudget
from verl_agent.types import StopReason, Usage

USER = Message(role="user", content="Find it.")
TEXT = "Action: look\nObservation: a lake\nObservation: more"


class Server:
    """Client of a server that writes the same text each time, and ends it at the limit where it is told so."""

    def __init__(self, truncated: bool = False) -> None:
        self.truncated, self.asked = truncated, list[ChatRequest]()

    async def ask(self, request: ChatRequest, position: int) -> ApiReply:
        self.asked.append(request)
        return ApiReply(TEXT, {"role": "assistant", "content": TEXT}, self.truncated, Usage(output_tokens=9))


def policy_of(server: Any, **budget: Any) -> ApiPolicy:
    seed = EpisodeSeed(0, "eval", "program", "1", 0, 0)
    return ApiPolicy(server, TokenBudget(99, 99, 50, **budget), {}, seed)


@pytest.mark.parametrize("truncated", [False, True])
def test_a_text_that_ends_a_reply_ends_it_and_the_server_never_reads_what_was_behind(truncated: bool) -> None:
    server = Server(truncated)
    policy = policy_of(server)
    limited = LimitedMessages.of([USER], ReplyLimits(stop=["lake", "\nObservation:"]))
    reply = asyncio.run(policy.reply(limited))
    assert (reply.text, reply.truncated_by) == ("Action: look\nObservation:", None)
    said: list[Message] = [USER, {"role": "assistant", "content": reply.text}, {"role": "user", "content": "a wall"}]
    asyncio.run(policy.reply(said))
    assert [(one.content, one.original) for one in server.asked[1].messages][1] == (reply.text, None)


@pytest.mark.parametrize(("wanted", "asked"), [(16, 16), (80, 50)])
def test_the_most_tokens_of_a_request_hold_below_those_of_the_run(wanted: int, asked: int) -> None:
    server = Server(truncated=True)
    reply = asyncio.run(policy_of(server).reply(LimitedMessages.of([USER], ReplyLimits(max_tokens=wanted))))
    assert server.asked[0].max_tokens == asked
    played = wanted < 50  # the program asked for a short reply and gets it; the limit of the run ends the episode
    assert (reply.truncated_by, reply.force_closed) == ((None, True) if played else (StopReason.TURN_TOKENS, False))
