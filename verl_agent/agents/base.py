"""What an agent is: the words around an environment. It never sees tokens."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from verl_agent.agents.context import Context, KeepAll
from verl_agent.envs.action_format import ActionFormat
from verl_agent.errors import ConfigError
from verl_agent.types import DemoAction, Message, StepResult

ONE_ACTION = "Take one action in each reply and wait for the result."


class Agent(ABC):
    """How a model is asked for actions and how its replies are read; a new one for each episode.

    A package registers its own with an entry point:

        entry_points={"verl_agent.agents": ["my_agent = my_package.agent:MyAgent"]}

    Its constructor takes what is below, and `agent.options` as further keyword arguments.

    Args:
        action_format: how the environment's actions are marked in a reply.
        context: what the model is shown of the conversation.
        instructions: tell the model how to reply; false for one that has learnt it, and for short prompts.
    """

    prefix: ClassVar[str] = ""
    """What an oracle's reply has before its action: a text with `{thought}`."""

    def __init__(self, action_format: ActionFormat, context: Context | None = None, instructions: bool = True) -> None:
        if not isinstance(instructions, bool):
            raise ConfigError(f"agent.options.instructions={instructions!r} is not allowed. Allowed: true, false.")
        self.action_format, self.context, self.instructions = action_format, context or KeepAll(), instructions

    @property
    def tools(self) -> list[dict[str, Any]] | None:
        """Functions that the chat template is given (OpenAI's format); None for none."""
        return None

    @abstractmethod
    def instruction(self) -> str:
        """How the model must reply; "" if nothing needs to be said."""

    def build_prompt(self, messages: Sequence[Message]) -> list[Message]:
        """The prompt of an episode: the environment's with the instructions, which stand behind its rules.

        Args:
            messages: what `EnvAdapter.reset` returned; a lone message of the user has no rules before it.
        """
        told = [self.instruction()] if self.instructions else []
        parts = [part for part in (*told, self.context.instruction) if part]
        first, *others = messages
        content = "\n\n".join([first["content"], *parts])
        if others or first["role"] == "system":
            return [{"role": first["role"], "content": content}, *others]
        return [{"role": first["role"], "content": "\n\n".join([*parts, first["content"]])}]

    def visible_messages(self, messages: Sequence[Message], prompt_length: int) -> list[Message]:
        """Return the messages that the model reads before its next reply; see `Context`.

        Args:
            messages: the conversation so far, which does not end with a reply.
            prompt_length: number of messages before the first reply.
        """
        return self.context.visible_messages(messages, prompt_length)

    def parse_reply(self, reply: str) -> str | None:
        """The action in a reply, bare, or None."""
        return self.action_format.parse(reply)

    @property
    def format_error(self) -> str:
        """What a reply without an action is answered. It costs a turn; the environment is not asked."""
        return f"No action found. Answer with: {self.action_format.template}"

    def observe(self, step: StepResult, action: str | None, turn: int) -> Message:
        """What the model reads after a step.

        Args:
            step: the environment's answer.
            action: what it answers; None if there was none in the reply.
            turn: number of the turn that it ends, from 1.
        """
        return {"role": "user", "content": step.observation}

    def render_demo(self, moves: Sequence[DemoAction], turn: int) -> str:
        """The reply of an oracle, asked for when the turn has come.

        Args:
            moves: all that it makes.
            turn: which of them is due, from 0.
        """
        return self.context.demo_prefix(moves[:turn]) + self.render_reply(moves, turn)

    def render_reply(self, moves: Sequence[DemoAction], turn: int) -> str:
        """See `write`; without what the context asks for."""
        move = moves[turn]
        return (self.prefix.format(thought=move.thought) if move.thought else "") + self.action_format.format(
            move.action
        )
