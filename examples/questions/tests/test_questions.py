"""Test the environment against its contract and its data sheet, and the notes of the agent."""

import asyncio
from importlib.metadata import entry_points

from questions.adapter import Questions
from questions.agent import Notebook
from questions.things import THINGS

from verl_agent import check_adapter
from verl_agent.agents.registry import make_agent
from verl_agent.agents.settings import AgentSettings
from verl_agent.envs.registry import make_env
from verl_agent.types import StepResult, TaskItem


def play(item: TaskItem, actions: list[str]) -> list[StepResult]:
    async def run() -> list[StepResult]:
        env = Questions()
        await env.reset(item)
        return [await env.step(action) for action in actions]

    return asyncio.run(run())


def test_environment_and_agent_are_registered():
    assert isinstance(make_env("questions", {"cost": 0.0}), Questions)
    assert entry_points(group="verl_agent.agents")["notebook"].load() is Notebook


def test_check_adapter_reports_no_violation():
    report = check_adapter(Questions, name="questions")
    assert not report.violations, str(report)


def test_demonstrations_find_every_thing_with_four_to_ten_questions():
    items = [*Questions().tasks("train"), *Questions().tasks("test")]
    assert len(items) == len(THINGS) == 120
    demos = [[demo.action for demo in Questions().demonstration(item)] for item in items]
    rewards = [play(item, actions)[-1].reward for item, actions in zip(items, demos, strict=True)]
    assert min(rewards) >= Questions.success_reward
    assert {len(actions) - 1 for actions in demos} <= set(range(4, 11))


def test_a_wrong_guess_ends_and_earns_nothing():
    item = TaskItem("questions", "x", {"thing": "small red wooden box"})
    (wrong,) = play(item, ["<guess>large red wooden box</guess>"])
    (right,) = play(item, ["<guess>the box: wooden, red, small.</guess>"])
    assert (wrong.reward, wrong.terminated, right.reward, right.terminated) == (0.0, True, 1.0, True)


def test_the_agent_repeats_all_answers():
    agent = make_agent(AgentSettings("notebook", context={"keep": "all"}), Questions.action_format)
    assert agent.parse_reply("Thought: halve them.\n<ask>red</ask>") == "<ask>red</ask>"
    agent.build_prompt([{"role": "user", "content": "What do you ask first?"}])
    agent.observe(StepResult("No, it is not red."), "<ask>red</ask>", 1)
    agent.observe(StepResult("Ask about one trait, or guess all four.", info={"invalid_action": 1.0}), None, 2)
    message = agent.observe(StepResult("Yes, it is large."), "<ask>large</ask>", 3)
    assert message["content"] == "Yes, it is large.\nNotes: No, it is not red. Yes, it is large."
