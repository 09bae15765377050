"""Tests of overseers of other packages in the rules of an approval policy, with the example that asks a model."""

import asyncio
import importlib
import json
import sys
from pathlib import Path

import pytest
from aiohttp import web

from tests.support.fakes import ScriptedPolicy
from tests.support.packages import install_example, write_metadata
from tests.support.web import serving
from verl_agent.agents.functions import FunctionCalls
from verl_agent.agents.plain import Act
from verl_agent.api import make_env
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import inline_pool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.tool_env import ToolEnv
from verl_agent.envs.tools import tool
from verl_agent.errors import ConfigError
from verl_agent.oversight.approval import Approval, ApprovedPool
from verl_agent.oversight.rules import Rule, asks_person, read_rules
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.types import Episode, TaskItem

OWN = """
import asyncio
import time
from contextlib import asynccontextmanager, suppress
import verl_agent as va

class Own(va.Overseer):
    watched = []

    @asynccontextmanager
    async def watch(self, episode):
        self.watched.append("begun")
        yield
        self.watched.append(len(episode.turns))

    def __init__(self, mood: str = ""):
        self.mood = mood

    async def decide(self, proposal):
        if self.mood == "slow":
            await asyncio.sleep(60)
        if self.mood == "blocks":
            time.sleep(0.1)
        if self.mood == "swallows":
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        if self.mood == "broken":
            raise RuntimeError("no power")
        two, more = va.Decision("edit", "1\\n2"), va.Decision("take_over", "1")
        seven, eight = va.Decision("edit", "7"), va.Decision("edit", "8")
        self.watched.append(self.mood)
        fine, nine, no = va.Decision("approve"), va.Decision("edit", "9"), va.Decision("reject", reason="no")
        mute = va.Decision("reject")
        moods = {"fine": fine, "blocks": fine, "swallows": fine, "mute": mute, "silent": None, "never": no}
        moods |= {"two lines": two, "greedy": more, "nine": nine, "seven": seven, "eight": eight}
        return moods[self.mood]

class Waiting(va.Overseer):
    def __init__(self, names: list[str] = [], kind: "asyncio.Missing" = None, **anything):
        pass

    def decide(self, proposal):
        return va.Decision("approve")

class Watching(Own):
    async def watch(self, episode):
        yield
"""


OVERSEERS = {name: f"own_overseer:{name.title()}" for name in ("own", "waiting", "watching")}


@pytest.fixture(scope="module", autouse=True)
def packages(tmp_path_factory):
    """The example, and a package with an overseer that fails in several ways, on the path of this process."""
    folder = tmp_path_factory.mktemp("packages")
    write_metadata(folder, "own-overseer", {"verl_agent.overseers": OVERSEERS})
    folder.joinpath("own_overseer.py").write_text(OWN)
    added = [str(path) for path in install_example("model_overseer", folder)]
    sys.path[:0] = added
    yield
    for path in added:
        sys.path.remove(path)


def play(rules: list[Rule], script: list[str]) -> Episode:
    env = make_env("guess_number")
    item = next(item for item in env.tasks("small_test") if item.data["target"] == 1)
    approval = Approval(rules, env.describe_action)
    limits = EpisodeLimits(len(script))
    return asyncio.run(play_episode(item, env, Act(env.action_format), ScriptedPolicy(script), limits, approval))


def test_a_model_approves_edits_and_rejects(tmp_path: Path):
    asked: list[str] = []
    answers = iter(
        [
            'Sure: {"decision": "approve"}',
            '{"decision": "edit", "action": "5"}',
            '{"decision": "reject", "reason": "too high"}',
            "I would rather not say.",
            '{"decision": "take_over_the_world"}',
        ]
    )

    async def answer(request: web.Request) -> web.Response:
        asked.append((await request.json())["messages"][0]["content"])
        return web.json_response({"choices": [{"message": {"content": next(answers)}}]})

    with serving(answer) as port:
        options = {"url": f"http://127.0.0.1:{port}/v1", "model": "any", "rule": "Guess low."}
        policy = tmp_path / "policy.yaml"
        policy.write_text(json.dumps({"rules": [{"actions": ["*"], "by": "model", "options": options}]}))
        rules = read_rules(str(policy), "evaluation.approve", make_env("guess_number"))
        episode = play(rules, [f"Action: {guess}" for guess in (9, 8, 7, 6, 4)])
    reviews = [turn.reply.review for turn in episode.turns if turn.reply.review]
    assert [(one.decision, one.by) for one in reviews] == [
        *(("approved", "model"), ("edited", "model"), ("rejected", "model"), ("rejected", "model")),
        ("rejected", "model"),
    ]
    assert [turn.actions for turn in episode.turns] == [("9",), ("5",), (), (), ()]
    assert (episode.turns[1].reply.author, episode.turns[1].reply.proposed) == ("overseer", "Action: 8")
    assert [turn.step.observation for turn in episode.turns[2:4] if turn.step] == [
        "The action was not carried out: too high",
        "The action was not carried out: the overseer gave no decision that can be read.",
    ]
    assert [turn.operated for turn in episode.turns] == [False, True, False, False, False]
    assert "Guess low." in asked[0] and "\n9\n" in asked[0] and not asks_person(rules)


def test_an_overseer_follows_each_episode():
    play([Rule(["*"], by="own", options={"mood": "fine"})], ["Action: 9", "Action: 8"])
    assert importlib.import_module("own_overseer").Own.watched == ["begun", "fine", "fine", 2]


@pytest.mark.parametrize("mood", ["slow", "blocks", "swallows"])
def test_an_overseer_that_does_not_decide_in_time_rejects(mood: str):
    (turn,) = play([Rule(["*"], by="own", options={"mood": mood}, timeout_s=0.05)], ["Action: 9"]).turns
    assert turn.reply.review is not None and (turn.reply.review.decision, turn.actions) == ("rejected", ())
    assert turn.step is not None and "own has to decide, and did not within 0.05 s" in turn.step.observation


def test_an_edit_that_cannot_be_written_rejects():
    (turn,) = play([Rule(["*"], by="own", options={"mood": "two lines"})], ["Action: 9"]).turns
    assert turn.actions == () and turn.step is not None and "cannot be written as a reply" in turn.step.observation


def test_an_edit_to_an_action_that_a_rule_forbids_rejects():
    rules = [Rule(["*"], text="9", decision="reject"), Rule(["*"], by="own", options={"mood": "nine"})]
    (turn,) = play(rules, ["Action: 8"]).turns
    assert turn.actions == () and turn.step is not None
    assert turn.step.observation.endswith("own chose another action, but rule 1 of the approval policy forbids it.")


@pytest.mark.parametrize(
    ("other", "played", "said"),
    [
        ({"mood": "fine"}, ("9",), ""),
        ({"mood": "never"}, (), "own chose another action, but no"),
        ({"mood": "seven"}, ("7",), ""),  # an edit of the edit, which no rule asks about
        ({"mood": "eight"}, (), "own chose another action, but own chose another action, but rules 1, 2 do not agree."),
    ],
)
def test_the_rule_of_an_edited_action_is_asked_too(other: dict[str, str], played: tuple[str, ...], said: str):
    rules = [
        Rule(["*"], text="8", by="own", options={"mood": "nine"}),
        Rule(["*"], text="9", by="own", options=other),
        Rule(["*"], decision="approve"),
    ]
    (turn,) = play(rules, ["Action: 8"]).turns
    assert turn.actions == played and turn.step is not None
    assert turn.step.observation.endswith(said) and turn.reply.review is not None
    assert turn.reply.review.decision == ("edited" if played else "rejected")


def test_a_rejection_without_a_reason_names_who_rejected():
    (turn,) = play([Rule(["*"], by="own", options={"mood": "mute"})], ["Action: 9"]).turns
    assert turn.step is not None and turn.step.observation.endswith("own rejected it.")


@pytest.mark.parametrize(
    ("calls", "asked", "carried_out"),
    [
        (("look", "pay"), [], 0),  # the rule about the second action decides before anyone is asked about the first
        (("pay", "look"), [], 0),
        (("look", "sign"), ["fine", "never"], 0),
        (("look", "look"), ["fine"], 2),
    ],
)
def test_each_action_of_a_reply_is_decided_on(calls: tuple[str, ...], asked: list[str], carried_out: int):
    class Shop(ToolEnv):
        @tool
        def look(self) -> str:
            """Look."""
            return "goods"

        @tool
        def sign(self) -> str:
            """Sign."""
            return "signed"

        @tool
        def pay(self) -> str:
            """Pay."""
            return "paid"

        def tasks(self, split):
            return [TaskItem("shop", "one")]

        async def reset(self, item):
            return [{"role": "user", "content": "Shop."}]

    rules = [
        Rule(["pay"], decision="reject"),
        Rule(["look"], by="own", options={"mood": "fine"}),
        Rule(["sign"], by="own", options={"mood": "never"}),
    ]
    env, watched = Shop(), importlib.import_module("own_overseer").Own.watched
    watched.clear()
    script = ["".join(f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' for name in calls)]
    agent, approval = FunctionCalls(env.action_format), Approval(rules, env.describe_action)
    (item,) = env.tasks("train")
    (turn,) = asyncio.run(play_episode(item, env, agent, ScriptedPolicy(script), EpisodeLimits(1), approval)).turns
    assert [mood for mood in watched if mood in ("fine", "never")] == asked
    assert len(turn.actions) == carried_out


@pytest.mark.parametrize(
    ("mood", "message"),
    [
        ("broken", "rule 1 asks own, which failed: RuntimeError: no power"),
        ("silent", r"rule 1 asks 'own', whose decide\(\) returned None. Allowed: Decision\('approve'\)"),
        ("greedy", r"returned Decision\(decision='take_over'"),
    ],
)
def test_an_overseer_that_gives_no_decision_stops_the_run(mood: str, message: str):
    with pytest.raises(ConfigError, match=message):
        play([Rule(["*"], by="own", options={"mood": mood})], ["Action: 9"])


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("{by: owl}", r"evaluation.approve.rules\[1\].by='owl' is not registered. Did you mean 'own'"),
        ("{by: own, options: {moood: slow}}", r"rules\[1\].options.moood is not a setting. Did you mean 'mood'"),
        ("{by: own, options: {mood: 3}}", r"rules\[1\].options.mood=3 is not allowed. Allowed: a text."),
        ("{by: model, options: {url: x}}", r"rules\[1\].options.model is missing. Allowed: a text."),
        ("{by: waiting}", r"rules\[1\].by='waiting': Waiting.decide is not `async def`."),
        ("{by: watching}", r"rules\[1\].by='watching': Watching.watch is no @asynccontextmanager."),
        ("{by: own, decision: approve}", "decision and reason are the overseer's with by: own"),
        ("{by: human, options: {mood: slow}}", "has no effect with by: human"),
    ],
)
def test_a_rule_that_cannot_ask_is_refused_at_the_start(tmp_path: Path, rule: str, message: str):
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"rules: [{{actions: ['*'], {rule[1:-1]}}}]")
    with pytest.raises(ConfigError, match=message):
        read_rules(str(policy), "evaluation.approve", make_env("guess_number"))


def test_a_server_refuses_a_rule_that_asks_another_overseer():
    env = make_env("guess_number")
    pool = inline_pool(env, CallLimits(), PoolLimits(count=1))
    with pytest.raises(ConfigError, match="by: own is not allowed for a server"):
        ApprovedPool(pool, Approval([Rule(["*"], by="own")], env.describe_action))
