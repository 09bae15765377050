"""Agent for the environment `program`, which writes the prompts and reads the replies itself."""

from collections.abc import Sequence

from typing_extensions import override

from verl_agent.agents.context import Context
from verl_agent.agents.functions import call_marks
from verl_agent.agents.plain import Raw
from verl_agent.envs.action_format import ActionFormat
from verl_agent.envs.program.conversation import CountedReply, Counts, conversation_at, limits_of, without_limits
from verl_agent.errors import ConfigError
from verl_agent.messages import LimitedMessages
from verl_agent.types import CallResult, DemoAction, Message, Reply, Usage


class ProgramAgent(Raw):
    """Shows the model the conversation that the program sent, and passes whole replies on."""

    def __init__(self, action_format: ActionFormat, context: Context | None = None) -> None:
        super().__init__(action_format, context, instructions=False)
        if self.context.edits:
            raise ConfigError(
                f"agent.context.keep={self.context.keep!r} has no effect with agent.name=program: the program chooses "
                "what the model reads. Set it to all."
            )

    @override
    def build_prompt(self, messages: Sequence[Message]) -> list[Message]:
        return list(messages)

    @override
    def read(self, reply: Reply) -> list[CallResult]:
        """The counts of the reply travel with its text."""
        used = reply.usage or Usage(input_tokens=reply.prompt_tokens, cached_tokens=reply.cached_tokens)
        counts = Counts(used.input_tokens or 0, used.cached_tokens or 0, reply.tokens, reply.force_closed)
        return [CallResult(CountedReply(reply.text, counts))]

    @override
    def render_reply(self, actions: Sequence[DemoAction], turn: int) -> str:
        return str(actions[turn].action)

    @override
    def visible_messages(self, messages: Sequence[Message], prompt_length: int) -> list[Message]:
        sent = conversation_at(messages, prompt_length)
        return LimitedMessages.of(without_limits(sent), limits_of(sent))

    @override
    def marks(self, reply: str) -> list[tuple[int, int]]:
        return call_marks(reply)

    @override
    def with_turns_left(self, message: Message, left: int) -> Message:
        if self.turns_left:
            raise ConfigError("agent.options.turns_left has no effect with agent.name=program. Set it to false.")
        return message
