"""Tests of approval policies: rules over actions and elements, people whom rules ask, and refused files."""

import asyncio
from pathlib import Path

import pytest

from tests.support.fakes import ScriptedPolicy
from tests.support.overseers import ScriptedPerson
from verl_agent.agents.plain import Act
from verl_agent.api import make_env
from verl_agent.envs.action_target import ActionTarget
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import inline_pool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.errors import ConfigError
from verl_agent.rollout.approval import Approval, Rule, read_rules
from verl_agent.rollout.approved_pool import ApprovedPool
from verl_agent.rollout.episode import EpisodeLimits, play
from verl_agent.types import Episode

PAGE = """[1] RootWebArea 'Buy things'
\t[2] link 'Home'
\t[3] button 'Buy now'
\t\t[4] image ''
\t[5] StaticText 'Send us a letter'
\t[6] button 'Pay'
\t[6] button 'Home'"""
GUARD = """
rules:
  - {actions: [click, type], elements: [buy, delete, pay, send], decision: reject, reason: no purchases}
  - {actions: [click, type, hover, scroll, press], decision: approve}
  - {actions: [stop], decision: approve}
"""


@pytest.fixture
def web():
    return make_env("webarena", tasks="embedded")


def rules(text: str, env, folder: Path) -> list[Rule]:
    file = folder / "policy.yaml"
    file.write_text(text)
    return read_rules(str(file), "evaluation.approve", env)


@pytest.mark.parametrize(
    ("action", "rule"),
    [
        ("click [2]", 2),
        ("click [3]", 1),
        ("Click 3", 1),  # as the environment reads it
        ("`click [3]`", 1),
        ("click [4]", 1),  # a click on the image activates the button around it
        ("click [5]", 1),
        ("click [6]", 1),  # two elements have the number, so the name is unknown
        ("click [99]", 1),
        ("type [2] [buy] [1]", 2),
        ("stop [12]", 3),
        ("goto [http://shop.test/buy]", None),
        ("fly", None),
    ],
)
def test_first_rule_that_applies_decides_and_nothing_else_is_approved(web, tmp_path, action, rule):
    number, found = Approval(rules(GUARD, web, tmp_path), web.describe_action).match(action, PAGE)
    assert (number, found is None) == (rule or 0, rule is None)


def test_rule_with_a_text_matches_the_whole_action(web, tmp_path):
    text = "rules: [{actions: [goto], text: ^goto .http://shop\\.test/, decision: approve}]"
    approval = Approval(rules(text, web, tmp_path), web.describe_action)
    assert approval.match("goto [http://shop.test/a]", PAGE)[0] == 1
    assert approval.match("goto [http://other.test/?http://shop.test/]", PAGE)[0] == 0


def test_unknown_element_is_never_approved_by_name():
    rule = Rule(["click"], ["home"], decision="approve")
    assert rule.applies(ActionTarget("click", "Home"), "click [2]")
    assert not rule.applies(ActionTarget("click", None), "click [2]")


def play_guess(rule_list, script, person=None) -> Episode:
    env = make_env("guess_number")
    item = env.tasks("small_test")[0]
    overseer = Approval(rule_list, env.describe_action, person)
    return asyncio.run(play(item, env, Act(env.action_format), ScriptedPolicy(script), EpisodeLimits(2), overseer))


def test_action_that_no_rule_allows_is_rejected_and_the_agent_reads_why():
    episode = play_guess([Rule(["*"], text="^9$", decision="approve")], ["Action: 1", "Action: 9"])
    assert [turn.review.decision for turn in episode.turns] == ["rejected", "approved"]
    assert episode.turns[0].step.observation.endswith("no rule of the approval policy allows it.")
    assert not episode.operated


def test_timeout_of_a_question_rejects():
    episode = play_guess(
        [Rule(["*"], by="human", timeout_s=0.05)], ["Action: 1", "Action: 2"], ScriptedPerson(["..."] * 2)
    )
    assert [(turn.review.decision, turn.review.by) for turn in episode.turns] == [("rejected", "rule")] * 2
    assert "nobody did within 0.05 s" in episode.turns[0].step.observation


def test_person_decides_where_a_rule_asks():
    episode = play_guess([Rule(["*"], by="human")], ["Action: 9", "Action: 2"], ScriptedPerson(["/a", "8"]))
    assert [(turn.review.decision, turn.action) for turn in episode.turns] == [("approved", "9"), ("edited", "8")]


def test_reply_without_an_action_is_not_reviewed():
    episode = play_guess([Rule(["*"], decision="approve")], ["hm", "Action: 2"])
    assert [turn.review is None for turn in episode.turns] == [True, False]


def test_server_carries_out_only_what_the_rules_allow():
    env = make_env("guess_number")
    item = next(item for item in env.tasks("small_test") if item.data["target"] == 1)

    async def run():
        rule_list = [Rule(["*"], text="^1$", decision="approve")]
        approval = Approval(rule_list, env.describe_action)
        pool = ApprovedPool(inline_pool(env, CallLimits(), PoolLimits(count=1)), approval)
        try:
            session = await pool.open()
            await pool.reset(session, item)
            return [await pool.step(session, action) for action in ("9", "1")]
        finally:
            await pool.shutdown()

    rejected, approved = asyncio.run(run())
    assert (rejected.info, rejected.terminated) == ({"rejected_action": 1.0}, False)
    assert (approved.reward, approved.terminated) == (1.0, True)


def test_server_refuses_a_rule_that_asks_a_person():
    env = make_env("guess_number")
    with pytest.raises(ConfigError, match="by: human is not allowed for a server"):
        pool = inline_pool(env, CallLimits(), PoolLimits(count=1))
        ApprovedPool(pool, Approval([Rule(["*"], by="human")], env.describe_action))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: [{actions: [clik], decision: approve}]", r"rules\[1\].actions has 'clik'.*Did you mean 'click'"),
        ("rules: [{actions: [click]}]", r"rules\[1\]: decision is missing"),
        ("rules: [{actions: [], decision: approve}]", "matches nothing"),
        ("rules: [{actions: [click], decision: approve, timeout_s: 3}]", "timeout_s=3 has no effect"),
        ("rules: [{actions: [click], by: human, decision: approve}]", "are the person's"),
        ("rules: [{actions: [click], by: robot}]", r"rules\[1\].by='robot'.*Allowed: rule, human"),
        ("rules: [{actions: [click], element: buy, decision: approve}]", "element.*Did you mean 'elements'"),
        ("rules: [{actions: [click], text: '(', decision: reject}]", "no regular expression"),
        ("rules: [{actions: [click], decision: approve, reason: x}]", "told to nobody"),
        ("rules: [click]", r"rules\[1\]='click' is not allowed"),
        ("rules: []", "has no rule"),
        ("allow: [click]", "allow"),
        ("- click", "is not allowed"),
        ("rules: [", "cannot be read"),
    ],
)
def test_file_that_is_no_policy_raises_config_error(web, tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        rules(text, web, tmp_path)


def test_missing_file_raises_config_error_naming_the_key(web):
    with pytest.raises(ConfigError, match=r"evaluation\.approve='none\.yaml' cannot be read"):
        read_rules("none.yaml", "evaluation.approve", web)


def test_action_of_an_environment_without_named_actions_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"'guess', which is no action of GuessNumber"):
        rules("rules: [{actions: [guess], decision: approve}]", make_env("guess_number"), tmp_path)
