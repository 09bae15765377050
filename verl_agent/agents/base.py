"""The base class of agents: prompts around an environment's texts, and parsing of replies. It never sees tokens."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from verl_agent.agents.context import Context, KeepAll
from verl_agent.envs.action_format import ActionFormat
from verl_agent.errors import ConfigError
from verl_agent.messages import with_text
from verl_agent.types import Action, CallResult, DemoAction, Message, Reply, StepResult

ONE_ACTION = "Take one action in each reply and wait for the result."
TURNS_LEFT = "\n\nTurns left: "
"""Text before the number of turns left, see `Agent.with_turns_left`."""


class Agent(ABC):
    """Prompts a model for actions and parses its replies; one instance plays one episode.

    A package registers its own with an entry point:

        entry_points={"verl_agent.agents": ["my_agent = my_package.agent:MyAgent"]}

    The constructor takes the arguments below, and `agent.options` as further keyword arguments.

    Args:
        action_format: format of actions in replies, declared by the environment.
        context: context window; None for the whole conversation.
        instructions: explain to the model how to reply. False suits short prompts and models that have learned it.
    """

    thought_template: ClassVar[str] = ""
    """Text before the action in a demonstration, with `{thought}` in place of the thought."""
    calls_functions: ClassVar[bool] = False
    """True if functions are listed for the model, by the chat template or by the instructions."""
    turns_left: bool = False
    """Tell the model the turns left (`agent.options.turns_left`). `make_agent` sets it, so no constructor takes it."""
    retry_failed: int = 0
    """Further attempts at a failed task within the episode (`agent.options.retry_failed`); `make_agent` sets it."""

    def __init__(self, action_format: ActionFormat, context: Context | None = None, instructions: bool = True) -> None:
        if not isinstance(instructions, bool):
            raise ConfigError(f"agent.options.instructions={instructions!r} is not allowed. Allowed: true, false.")
        self.action_format, self.context, self.instructions = action_format, context or KeepAll(), instructions

    @property
    def tools(self) -> list[dict[str, Any]] | None:
        """Functions for the chat template, in OpenAI's format; None for an agent without functions."""
        return None

    @property
    def parallel(self) -> bool:
        """True if a reply may call several functions."""
        return False

    @abstractmethod
    def instruction(self) -> str:
        """Return the explanation of how to reply, or "" if the model needs no explanation."""

    def build_prompt(self, messages: Sequence[Message]) -> list[Message]:
        """Return the prompt of an episode: the environment's messages with the instructions after its rules.

        Args:
            messages: result of `EnvAdapter.reset`. If it is a single user message, the instructions precede it.
        """
        listing = "" if self.calls_functions or self.tools else self.action_format.listing
        own = [listing, self.instruction()] if self.instructions else []
        parts = [part for part in (*own, self.context.instruction) if part]
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

    @property
    def action_mark(self) -> str:
        """Text that begins a reply without a thought; "" if replies have no part that is not the action."""
        return self.action_format.mark

    def parse_reply(self, reply: str) -> Action | None:
        """Return the action in a reply without its mark, or None."""
        return self.action_format.parse(reply)

    def marks(self, reply: str) -> list[tuple[int, int]]:
        """Return start and end of the marks around the action of a reply, such as the tags of a function call.

        A model may have tokens of its own for them. Where someone else wrote the reply, any other text of it, such as
        the argument of a call, never becomes such a token.
        """
        return self.action_format.marks(reply)

    def read(self, reply: Reply) -> list[CallResult]:
        """Return the actions of a reply that is played; see `read_reply`."""
        return self.read_reply(reply.text)

    def read_reply(self, reply: str) -> list[CallResult]:
        """Return the actions of a reply in order, at least one entry; what is no action has its answer already."""
        action = self.parse_reply(reply)
        if action is not None:
            return [CallResult(action)]
        return [CallResult(None, StepResult(self.format_error, info={"invalid_action": 1.0}))]

    @property
    def format_error(self) -> str:
        """Return the answer to a reply without an action, which costs a turn and does not reach the environment."""
        return f"No action found. Answer with: {self.action_format.template}"

    def observe(self, step: StepResult, action: Action | None, turn: int) -> Message:
        """Return the message that the model reads after a step.

        Args:
            step: answer of the environment, or `format_error` as its observation.
            action: the parsed action; None if the reply had none.
            turn: number of the turn that ends, from 1.
        """
        return {"role": "user", "content": step.observation}

    def observe_calls(self, results: Sequence[CallResult], step: StepResult, turn: int) -> Message:
        """Return the message that the model reads after a reply; agents that call functions answer each call.

        Args:
            results: actions of the reply with their answers.
            step: all answers as one.
            turn: number of the turn that ends, from 1.
        """
        return self.observe(step, first_action(results), turn)

    def with_turns_left(self, message: Message, left: int) -> Message:
        """Return the last message before a reply, with the turns left at its end if `turns_left` is set.

        With a time limit that is part of the task, the remaining time is part of the state (arXiv 1712.00378, section
        3).

        Args:
            message: end of the prompt, or an observation.
            left: number of replies that the episode may still have, 0 after the last one.
        """
        if not self.turns_left:
            return message
        return with_text(message, f"{TURNS_LEFT}{left}")

    def without_turns_left(self, text: str) -> str:
        """Return the text of a message without the end that `with_turns_left` added."""
        return text.rpartition(TURNS_LEFT)[0] if self.turns_left else text

    def render_demo(self, actions: Sequence[DemoAction], turn: int) -> str:
        """Return the reply that demonstrates one action of an oracle. Calls come turn by turn.

        Args:
            actions: all actions of the demonstration.
            turn: index of the action to render, from 0.
        """
        return self.context.demo_prefix(actions[:turn]) + self.render_reply(actions, turn)

    def render_reply(self, actions: Sequence[DemoAction], turn: int) -> str:
        """Return the reply of `render_demo` without the part that the context adds."""
        demo = actions[turn]
        thought = self.thought_template.format(thought=demo.thought) if demo.thought else ""
        return thought + self.action_format.format(demo.action)


def first_action(results: Sequence[CallResult]) -> Action | None:
    """Return the first action among the results of a reply, or None."""
    return next((one.action for one in results if one.action is not None), None)
