"""Agent for the environment `program`, which writes the prompts and reads the replies itself."""

from collections.abc import Sequence

from typing_extensions import override

from verl_agent.agents.context import Context
from verl_agent.agents.plain import Raw
from verl_agent.envs.action_format import ActionFormat
from verl_agent.envs.program.conversation import conversation_at
from verl_agent.errors import ConfigError
from verl_agent.types import Message


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
    def visible_messages(self, messages: Sequence[Message], prompt_length: int) -> list[Message]:
        return conversation_at(messages, prompt_length)

    @override
    def with_turns_left(self, message: Message, left: int) -> Message:
        if self.turns_left:
            raise ConfigError("agent.options.turns_left has no effect with agent.name=program. Set it to false.")
        return message
