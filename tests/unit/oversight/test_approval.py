"""Tests of approval policies: rules over actions and elements, people whom rules ask, and refused files."""

import asyncio
from pathlib import Path

import pytest

from tests.support.fakes import ITEM, ScriptedPolicy, Talk
from tests.support.overseers import ScriptedPerson
from verl_agent.agents.plain import Act
from verl_agent.api import make_env
from verl_agent.envs.action_target import ActionTarget
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import inline_pool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.errors import ConfigError
from verl_agent.oversight.approval import Approval, ApprovedPool
from verl_agent.oversight.rules import Rule, read_rules
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.types import Episode

PAGE = """[1] RootWebArea 'Buy things'
\t[2] link 'Home'
\t[3] button 'Buy now'
\t\t[4] image ''
\t[5] StaticText 'Send us a letter'
\t[6] button 'Pay'
\t[6] button 'Home'
\t[7] button 'A very long name that is bu
\t[8] button 'A very long name that is bu
\t\t[9] image 'Home'
\t[10] button ''"""
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
        ("click [1]", 1),  # the page as a whole, in whose middle a button may be
        ("click [7]", 1),  # a truncated name may go on with any word
        ("click [9]", 1),  # inside a button whose name is truncated
        ("click [10]", 1),  # a button without a name
        ("hover [2]", 2),
        ("type [2] [buy] [0]", 2),
        ("type [2] [buy] [1]", 1),  # Enter clicks on a button of the form
        ("type [2] [buy]", 1),
        ("press [Enter]", 1),  # clicks on what has the focus
        ("press [Tab]", 1),
        ("stop [12]", 3),
        ("goto [http://shop.test/buy]", None),
        ("fly", 1),  # no action that the environment knows by a name
    ],
)
def test_first_rule_that_applies_decides_and_nothing_else_is_approved(web, tmp_path, action, rule):
    number, found = Approval(rules(GUARD, web, tmp_path), web.describe_action).find(action, PAGE)
    assert number == (rule or 0) and (rule or found.decision == "reject")


def test_rule_with_a_text_matches_the_whole_action(web, tmp_path):
    text = "rules: [{actions: [goto], text: ^goto .http://shop\\.test/, decision: approve}]"
    approval = Approval(rules(text, web, tmp_path), web.describe_action)
    assert approval.find("goto [http://shop.test/a]", PAGE)[0] == 1
    assert approval.find("goto [http://other.test/?http://shop.test/]", PAGE)[0] == 0


@pytest.mark.parametrize(
    ("names", "approved"),
    [
        (("Home",), True),
        (("Go  HOME now",), True),
        (("Home", "Home page"), True),
        (("Home", "Buy now"), False),  # an image in a button
        (("Homeopathy",), False),
        ((), False),
        (None, False),
    ],
)
def test_approving_rule_needs_each_name_of_the_element_in_whole_words(names, approved):
    rule = Rule(["click"], ["home"], decision="approve")
    assert rule.applies(ActionTarget("click", names, "click [2]")) == approved


LOOK_ALIKES = (
    "B u y now",
    "b.u.y",
    "b\u200bu\u00ady",
    "\u042cuy",
    "bu\u0443",
    "b\u00fay",
    "\uff22\uff35\uff39",
    "\U0001d401uy",
)
"""Spaces and dots between letters, invisible characters, Cyrillic letters, an accent, wide and mathematical letters."""


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_name_that_looks_like_a_forbidden_word_is_forbidden(name):
    assert Rule(["click"], ["buy"], decision="reject").applies(ActionTarget("click", (name,), "click [2]"))
    assert not Rule(["click"], ["buy"], decision="reject").applies(ActionTarget("click", ("Basket",), "click [2]"))


@pytest.mark.parametrize("name", ["P\u0430y", "de1ete", "De\u0406ete", "d e l e t e", "\u0440ay"])
def test_letters_that_are_drawn_alike_are_alike_for_rules_that_reject(name):
    assert Rule(["click"], ["pay", "delete"], by="human").applies(ActionTarget("click", (name,), "click [2]"))


@pytest.mark.parametrize("name", ["S e a r c h", "Se\u0430rch", "\u0405earch", "5earch", "S\u00e9arch"])
def test_a_page_that_imitates_an_allowed_word_is_not_approved(name):
    rule = Rule(["click"], ["search"], decision="approve")
    assert not rule.applies(ActionTarget("click", (name,), "click [2]"))
    assert rule.applies(ActionTarget("click", ("Se\u200barch \uff33hop",), "click [2]"))


def test_an_unknown_element_is_a_question_where_a_person_may_be_asked(web, tmp_path):
    ask = "  - {actions: [goto], by: human, timeout_s: 9}\n"
    asking = Approval(rules(GUARD + ask, web, tmp_path), web.describe_action)
    for unknown in ("click [99]", "click [10]", "type [2] [buy] [1]", "press [Enter]"):
        asked = asking.find(unknown, PAGE)[1]
        assert asked.by == "human" and asked.timeout_s == 9, unknown
    assert not asking.find("click [3]", PAGE)[1].asks
    alone = Approval(rules(GUARD, web, tmp_path), web.describe_action).find("click [99]", PAGE)[1]
    assert not alone.asks and alone.decision == "reject"


def test_search_is_approved_where_the_rule_names_what_enter_does(web, tmp_path):
    page = "[1] RootWebArea 'Shop'\n\t[2] textbox 'Search'\n\t[3] textbox 'Name'"
    text = "rules: [{actions: [type, press, click], elements: [search], decision: approve}]"
    approval = Approval(rules(text, web, tmp_path), web.describe_action)
    typed = "rules: [{actions: [type], elements: [search], decision: approve}]"
    only_typed = Approval(rules(typed, web, tmp_path), web.describe_action)
    assert [approval.find(f"type [{number}] [mug] [1]", page)[0] for number in (2, 3)] == [1, 0]
    assert [only_typed.find(f"type [2] [mug] [{enter}]", page)[0] for enter in (0, 1)] == [1, 0]


@pytest.mark.parametrize(
    ("env", "plain", "spellings"),
    [
        ("textcraft", "get 1 oak log", ["GET 1 oak log", " get  1 oak log", "`Get 1 oak log.`", '"get 1 oak log"']),
        ("textcraft", "craft 4 oak planks using 1 oak log", ["Craft 4 oak planks  using 1 oak log"]),
        ("textcraft", "inventory", ["Inventory", " INVENTORY"]),
        ("babyai", "pickup red ball 1", ["Pick up red  ball 1", "`pickup red ball 1`."]),
        ("scienceworld", "focus on red box", [" focus  on red box.", "**focus on red box**"]),
        ("deepsearch", "<search>red box</search>", ["<SEARCH>red  box</Search>", "< search >\nred box"]),
        ("guess_number", "7", ["`7`", "7.", "007"]),
        ("webarena", "click [3]", ["Click 3", "`click  [3]`", "click[ 3 ]"]),
    ],
)
def test_other_spellings_of_an_action_have_its_name_and_its_text(env, plain, spellings):
    adapter = make_env(env, **({"tasks": "embedded"} if env == "webarena" else {}))
    expected = adapter.describe_action(plain, PAGE)
    assert expected.text == plain
    for spelling in spellings:
        assert adapter.describe_action(spelling, PAGE) == expected, spelling


def test_spelling_is_no_way_around_a_rule_in_an_episode():
    env = make_env("textcraft")
    rule_list = [Rule(["get"], decision="reject", reason="no"), Rule(["*"], decision="approve")]
    overseer = Approval(rule_list, env.describe_action)
    policy = ScriptedPolicy(["Action: get 1 oak log", "Action: GET 1 oak log", "Action: inventory"])
    episode = asyncio.run(
        play_episode(env.tasks("test")[0], env, Act(env.action_format), policy, EpisodeLimits(3), overseer)
    )
    assert [turn.reply.review.decision for turn in episode.turns] == ["rejected", "rejected", "approved"]
    assert "not carrying anything" in episode.turns[2].step.observation


class OnePage(Talk):
    """Environment that shows a page once, at its reset; its actions are those of the web."""

    async def reset(self, item):
        await super().reset(item)
        return [{"role": "user", "content": PAGE}]


def test_elements_are_those_of_the_last_page_after_a_rejection_and_after_a_reply_without_an_action(web, tmp_path):
    session = type("OnePage", (OnePage,), {"made": []})()
    overseer = Approval(rules(GUARD, web, tmp_path), web.describe_action)
    policy = ScriptedPolicy(["```click [3]```", "hm", "```click [2]```"])
    episode = asyncio.run(play_episode(ITEM, session, Act(web.action_format), policy, EpisodeLimits(3), overseer))
    assert [turn.reply.review.decision if turn.reply.review else None for turn in episode.turns] == [
        "rejected",
        None,
        "approved",
    ]
    assert session.heard == 1


def play_guess(rule_list, script, person=None) -> Episode:
    env = make_env("guess_number")
    item = env.tasks("small_test")[0]
    overseer = Approval(rule_list, env.describe_action, person)
    return asyncio.run(
        play_episode(item, env, Act(env.action_format), ScriptedPolicy(script), EpisodeLimits(2), overseer)
    )


def test_action_that_no_rule_allows_is_rejected_and_the_agent_reads_why():
    episode = play_guess([Rule(["*"], text="^9$", decision="approve")], ["Action: 1", "Action: 9"])
    assert [turn.reply.review.decision for turn in episode.turns] == ["rejected", "approved"]
    assert episode.turns[0].step.observation.endswith("no rule of the approval policy allows it.")
    assert not episode.operated


def test_timeout_of_a_question_rejects():
    episode = play_guess(
        [Rule(["*"], by="human", timeout_s=0.05)], ["Action: 1", "Action: 2"], ScriptedPerson(["..."] * 2)
    )
    assert [(turn.reply.review.decision, turn.reply.review.by) for turn in episode.turns] == [("rejected", "rule")] * 2
    assert "a person has to decide, and did not within 0.05 s" in episode.turns[0].step.observation


def test_person_decides_where_a_rule_asks():
    episode = play_guess([Rule(["*"], by="human")], ["Action: 9", "Action: 2"], ScriptedPerson(["/a", "8"]))
    assert [(turn.reply.review.decision, turn.action) for turn in episode.turns] == [("approved", "9"), ("edited", "8")]


def test_reply_without_an_action_is_not_reviewed():
    episode = play_guess([Rule(["*"], decision="approve")], ["hm", "Action: 2"])
    assert [turn.reply.review is None for turn in episode.turns] == [True, False]


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
        ("rules: [{actions: [click], by: robot}]", r"rules\[1\].by='robot'.*Known: human, rule"),
        ("rules: [{actions: [click], element: buy, decision: approve}]", "element.*Did you mean 'elements'"),
        ("rules: [{actions: [click], text: '(', decision: reject}]", "no regular expression"),
        ("rules: [{actions: [click], decision: approve, reason: x}]", "told to nobody"),
        ("rules: [{actions: [click], decision: reject, reason: no}]", "reason=False.*words such as no .* in quotes"),
        ("rules: [click]", r"rules\[1\]='click' is not allowed"),
        ("rules: []", "has no rule"),
        ("allow: [click]", "allow"),
        ("- click", "is not allowed"),
        (
            "rules: [{actions: [click], decision: allow}]",
            "Allowed: approve, reject or null. Null, or no decision, is for by",
        ),
        ("rules: [\n", r"policy.yaml' is not valid YAML in line 2, column 1: expected the node content, but found"),
    ],
)
def test_file_that_is_no_policy_raises_config_error(web, tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        rules(text, web, tmp_path)


@pytest.mark.parametrize("decision", ["decision: approve", "decision: reject", "by: human"])
def test_rule_about_elements_is_refused_where_actions_have_none(tmp_path, decision):
    text = f"rules: [{{actions: [craft], elements: [stick], {decision}}}]"
    with pytest.raises(ConfigError, match=r"rules\[1\]\.elements=\['stick'\] never matches: actions of TextCraft have"):
        rules(text, make_env("textcraft"), tmp_path)


def test_missing_file_raises_config_error_naming_the_key(web):
    with pytest.raises(ConfigError, match=r"evaluation\.approve='none\.yaml' cannot be read"):
        read_rules("none.yaml", "evaluation.approve", web)


def test_action_of_an_environment_without_named_actions_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"'guess', which is no action of GuessNumber"):
        rules("rules: [{actions: [guess], decision: approve}]", make_env("guess_number"), tmp_path)
