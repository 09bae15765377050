"""Check of an agent: what its instructions and `format_error` show parses, and every refused reply is explained."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from verl_agent.agents.base import Agent
from verl_agent.agents.registry import make_agent
from verl_agent.agents.settings import AgentSettings
from verl_agent.envs.action_format import ActionFormat, FenceFormat, LineFormat, TagFormat, ToolFormat
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.schema_samples import example
from verl_agent.envs.testing.check import Report
from verl_agent.envs.testing.contract import BAD_ACTIONS, fuzz
from verl_agent.envs.testing.violation import ContractViolation, boundary
from verl_agent.types import Action, DemoAction, Message, StepResult, ToolCall

FORMATS = (LineFormat(), FenceFormat(), TagFormat(tags=(("ask", "a question"), ("tell", "the answer"))))
"""Formats that are tried without an environment."""
PARSE = "demonstrations parse"
MOST_ACTIONS = 50
"""Most actions of an environment that are tried."""
ACTIONS = ("go north", "get 2 oak logs", "say 'it is so'")
PROMPT: list[Message] = [{"role": "system", "content": "You walk."}, {"role": "user", "content": "You are in a room."}]
NOTHING = ("", " \n", "I do not know.", "Thought: I think about it.")
"""Replies without an action in any format."""


def check_agent(
    name: str,
    options: Mapping[str, Any] | None = None,
    formats: Sequence[ActionFormat] = FORMATS,
    actions: Sequence[Action] = (),
    on_line: Callable[[str], None] = lambda line: None,
) -> Report:
    """Check that prompt, parser and `format_error` of an agent agree.

    Args:
        name: registered name.
        options: keyword arguments of the agent, as in `agent.options`.
        formats: action formats of environments.
        actions: actions of the environment; none for some that its format or its tools can write.
        on_line: receives each line of the report as soon as it is known.

    Raises:
        ConfigError: the name is not registered, or an option is not allowed.
    """
    report, settings = Report(on_line=on_line), AgentSettings(name, options or {})
    for form in formats:
        if not report.run(f"{form.kind}: replies may hold any text", partial(_texts, make_agent(settings, form))):
            continue
        refuses = any(make_agent(settings, form).parse_reply(reply) is None for reply in NOTHING)
        if not refuses:
            report.note(f"{form.kind}: no reply is refused, so the environment must explain its actions itself.")
        for title, check in CHECKS.items():
            report.run(f"{form.kind}: {title}", partial(check, make_agent(settings, form), refuses))
        shown = list(actions) or sample_actions(form)
        report.run(f"{form.kind}: {PARSE}", partial(_demonstrations, make_agent(settings, form), shown))
    return report


def actions_of(env: EnvAdapter) -> list[Action]:
    """Return the actions of the first demonstration of an environment; empty without one."""
    for split in env.splits:
        for item in env.tasks(split)[:1]:
            try:
                if env.oracle(item) is None:
                    return [demo.action for demo in env.demonstration(item)][:MOST_ACTIONS]
            except NotImplementedError:
                continue
    return []


def sample_actions(action_format: ActionFormat) -> list[Action]:
    """Return actions that a format can write, an example of each tool if it has tools."""
    if not action_format.tools:
        return [action_format.action_with(text) for text in ACTIONS]
    calls = [ToolCall(tool.name, example(tool.schema_of_arguments)) for tool in action_format.tools]
    if isinstance(action_format, ToolFormat):
        return [*calls]
    words = [{key: _word(value) for key, value in call.arguments.items()} for call in calls]
    lines = [tool.render(values) for tool, values in zip(action_format.tools, words, strict=True)]
    return [line for line in lines if line is not None]


def _word(value: object) -> object:
    """Return the word in the placeholder of a text; a line may have marks of its own."""
    return value.strip("<>") if isinstance(value, str) else value


def _texts(agent: Agent) -> None:
    for reply in (*NOTHING, *BAD_ACTIONS, *fuzz([f"{agent.action_mark} {text}" for text in ACTIONS])):
        _parse(agent, reply)


def _prompt(agent: Agent, refuses: bool) -> None:
    for prompt in (PROMPT, PROMPT[1:]):
        with boundary(f"build_prompt({len(prompt)} messages)", "It returns the messages with the instructions added."):
            built = "\n".join(message["content"] for message in agent.build_prompt(prompt))
        if lost := [message["content"] for message in prompt if message["content"] not in built]:
            raise ContractViolation("build_prompt()", f"lost {lost[0]!r}", "Add to the messages, and remove nothing.")
    shown = agent.instruction() if agent.instructions and not agent.tools else ""
    if refuses and shown and _parse(agent, shown) is None:
        advice = "Show the form of a reply with self.action_format.template."
        raise ContractViolation("parse_reply(instruction())", "is None", advice)


def _demonstrations(agent: Agent, shown: Sequence[Action]) -> None:
    agent.build_prompt(PROMPT)
    actions = [DemoAction(action, thought="The door is open.") for action in shown]
    for turn, demo in enumerate([*actions, DemoAction(actions[0].action)]):
        with boundary(f"render_demo(actions, {turn})", "It returns the reply that the model should learn."):
            reply = agent.render_demo([*actions, demo], turn)
            agent.observe(StepResult("You went."), demo.action, turn + 1)
        if (action := _parse(agent, reply)) != demo.action or agent.action_mark not in reply:
            got = f"returned {action!r} instead of {demo.action!r}, with the mark {agent.action_mark!r}"
            advice = "render_reply(), parse_reply() and action_mark must agree; a thought goes before the action."
            raise ContractViolation(f"parse_reply({reply!r})", got, advice)


def _refusals(agent: Agent, refuses: bool) -> None:
    shown, tools = agent.format_error, [tool["function"]["name"] for tool in agent.tools or ()]
    explained = all(tool in shown for tool in tools) if tools else _parse(agent, shown) is not None
    if refuses and not explained:
        advice = "Show the form of a reply with self.action_format.template, or name each function."
        raise ContractViolation("format_error", f"is {shown!r}, which shows no reply that parses", advice)


def _observations(agent: Agent, refuses: bool) -> None:
    agent.build_prompt(PROMPT)
    for turn, (text, action) in enumerate((("You went.", "go north"), (agent.format_error, None)), start=1):
        with boundary(f"observe({text!r})", "It returns a message with the observation."):
            message = agent.observe(StepResult(text), action, turn)
            if text not in message["content"] or message["role"] not in ("user", "tool"):
                raise ContractViolation("observe()", f"returned {message!r}", "Keep the observation, for user or tool.")


CHECKS: Mapping[str, Callable[[Agent, bool], None]] = {
    "what the instructions show parses": _prompt,
    "refused replies are explained": _refusals,
    "observations reach the model": _observations,
}


def _parse(agent: Agent, reply: str) -> Action | None:
    """Return the action in a reply, which must be text for an environment."""
    with boundary(f"parse_reply({reply[:60]!r})", "It returns the action, or None for a reply without one."):
        action = agent.parse_reply(reply)
        if not isinstance(action, str | ToolCall | None):
            raise ContractViolation("parse_reply()", f"returned {action!r}", "Return the action as text, or None.")
        return action
