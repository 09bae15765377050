"""Tests of the environment `http`: episodes on servers of `verl-agent serve` and of AgentGym, and its options."""

import asyncio
import pickle
import re
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from env_adapters.agentgym.adapter import AGREEMENT, DIALECTS, parse_numbers
from env_adapters.guess_number.adapter import GuessNumber
from env_adapters.textcraft.adapter import TextCraft
from tests.support.agentgym import Server
from tests.support.attempts import play_until_valid
from tests.support.fakes import ScriptedPolicy, words_of
from tests.support.http_episodes import options, solve, unused_url
from tests.support.serving import pool_of, serving, serving_app
from tests.support.waiting import wait_until
from verl_agent.agents.plain import ReAct
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.answers import checked
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import process_pool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.http.client import HttpEnv
from verl_agent.envs.http.task_index import TaskIndex
from verl_agent.envs.registry import make_env
from verl_agent.envs.session import PooledEnv
from verl_agent.envs.tasks import check_disjoint, select_tasks, task_contents
from verl_agent.envs.testing.check import check_adapter
from verl_agent.errors import ConfigError, ContractError
from verl_agent.oversight.approval import Approval, ApprovedPool
from verl_agent.oversight.rules import Rule
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.types import DemoAction, Episode, StopReason, TaskItem

# Servers of verl-agent serve


def test_an_action_that_a_servers_rules_reject_is_an_answer_and_stops_no_run():
    approval = Approval([Rule(["*"], text="^1$", decision="approve")], GuessNumber().describe_action)
    with serving("guess_number", ApprovedPool(pool_of(GuessNumber), approval)) as running:
        env = make_env("http", options("guess_number", running.url))

        async def play() -> list[dict[str, float]]:
            session = checked(env.new_session())
            try:
                await session.reset(select_tasks(env, "small_test")[0])
                return [dict((await session.step(action)).info) for action in ("9", "1")]
            finally:
                await session.close()

        rejected, approved = asyncio.run(play())
    assert rejected["rejected_action"] == 1 and "rejected_action" not in approved


def test_the_oracle_solves_20_goals_of_textcraft_over_http():
    local = {item.id: item for item in TextCraft().tasks("test")}
    with serving("textcraft", pool_of(TextCraft)) as running:
        chosen = options("textcraft", running.url)
        items = select_tasks(make_env("http", chosen), "test")
        assert [item.id for item in items] == list(local)
        assert items[0].category == local[items[0].id].category

        async def all_at_once() -> list[Episode]:
            plays = [solve(item, chosen, TextCraft().demonstration(local[item.id])) for item in items[:20]]
            return await asyncio.gather(*plays)

        episodes = asyncio.run(all_at_once())
        assert [(episode.stop, episode.reward) for episode in episodes] == [(StopReason.TERMINATED, 1.0)] * 20
        wait_until(lambda: len(running.server.sessions) == 0)
    here = asyncio.run(
        play_episode(
            local[items[0].id],
            TextCraft(),
            ReAct(TextCraft.action_format),
            ScriptedPolicy(words_of(TextCraft(), local[items[0].id])),
            EpisodeLimits(99),
        )
    )
    assert here.messages == episodes[0].messages


def test_the_http_environment_satisfies_the_contract_of_adapters():
    """Includes sessions in several event loops that share connections."""
    with serving("guess_number", pool_of(GuessNumber)) as running:
        chosen = options("guess_number", running.url)
        report = check_adapter(HttpEnv, chosen, items=2, timeout_s=250)
        assert not report.violations, str(report)
        wait_until(lambda: len(running.server.sessions) == 0)


def test_measurements_and_termination_reach_the_client():
    with serving("guess_number", pool_of(GuessNumber)) as running:
        chosen = options("guess_number", running.url)
        item = TaskItem("guess_number", "100:7")
        episode = asyncio.run(solve(item, chosen, ["what?", "Action: 50", "Action: 7"]))
    assert episode.info_total("invalid_action") == 1.0
    assert [message["role"] for message in episode.messages[:2]] == ["system", "user"]
    assert (episode.stop, episode.reward, len(episode.turns)) == (StopReason.TERMINATED, 1.0, 3)


@pytest.mark.parametrize(("reward", "allowed"), [(np.float32(1.0), True), (float("nan"), False), ("1", False)])
def test_a_server_converts_the_values_of_its_environment_and_stops_the_client_for_others(reward, allowed):
    class Typed(GuessNumber):
        async def step(self, action):
            result = await super().step(action)
            return replace(result, reward=reward, terminated=np.bool_(result.terminated)) if result.reward else result

    with serving("guess_number", pool_of(Typed)) as running:
        played = solve(TaskItem("guess_number", "100:7"), options("guess_number", running.url), ["Action: 7"])
        if allowed:
            assert asyncio.run(played).success
            return
        with pytest.raises(ConfigError, match=r"step gave reward=.* in task '100:7' of env 'guess_number'"):
            asyncio.run(played)


@pytest.mark.parametrize("name", ["sciworld", "textcraft"])
@pytest.mark.parametrize(("score", "done"), [(1.0, "false"), (1.0, None), (1.0, 2), (1.0, [])])
def test_a_value_of_agentgyms_server_that_is_not_allowed_stops_the_run(name, score, done):
    with pytest.raises(ContractError, match=r"step gave (reward|terminated)="):
        play_on_agentgym(name, [("Fine.", score, done)])


@pytest.mark.parametrize("score", ["1", None, [1.0]])
def test_a_score_that_is_no_number_reaches_the_check_of_the_session(score):
    result, kept = DIALECTS["sciworld"].read_step({"observation": "", "score": score, "done": False}, 0.5)
    assert (result.reward, kept) == (score, 0.5)


def test_splits_tasks_and_success_reward_come_from_the_servers():
    class Lenient(GuessNumber):
        success_reward = 0.5

    with serving("guess_number", pool_of(Lenient)) as running:
        running.server.tasks.success_reward = 0.5
        env = make_env("http", options("guess_number", running.url))
        assert (env.splits, env.success_reward) == (GuessNumber.splits, 0.5)
        assert len(env.tasks("small_train")) == 51
        train, test = (select_tasks(env, split) for split in ("train", "test"))
        check_disjoint(train, test, {"env.train_tasks": "train", "env.eval_tasks": "test"})
        with pytest.raises(ConfigError, match=r"has no split 'trian'\. Did you mean 'train'\?"):
            select_tasks(env, "trian")


@pytest.mark.parametrize("name", ["deterministic", "seeded", "ends_failed_tasks"])
@pytest.mark.parametrize("declared", [True, False])
def test_properties_of_the_environment_come_from_the_servers(name, declared):
    with serving("guess_number", pool_of(GuessNumber)) as running:
        setattr(running.server.tasks, name, declared)
        assert getattr(make_env("http", options("guess_number", running.url)), name) is declared


def test_agentgym_servers_declare_no_determinism():
    env = make_env(
        "http", {**options("textcraft", "http://127.0.0.1:1"), "protocol": "agentgym", "items": {"test": "0-1"}}
    )
    assert not env.deterministic


def test_an_episode_on_a_server_continues_after_an_error():
    """The session in the server dies; the actions are replayed in a new one."""
    with serving("guess_number", pool_of(GuessNumber)) as running:
        env = make_env("http", options("guess_number", running.url))
        item = TaskItem("guess_number", "100:7")

        class Dropping(ScriptedPolicy):
            async def reply(self, messages):
                if len(self.heard) == 1:
                    running.drop_sessions()
                return await super().reply(messages)

        policy = Dropping(["Action: 50", "Action: 7"])
        (episode,) = asyncio.run(
            play_until_valid(
                item, env.new_session, lambda: ReAct(env.action_format), lambda: policy, EpisodeLimits(3, retries=1)
            )
        )
    assert (episode.stop, episode.reward, len(episode.replays)) == (StopReason.TERMINATED, 1.0, 1)


def test_pickling_and_new_sessions_ask_no_server():
    chosen = options("textcraft", "http://127.0.0.1:1")
    env = pickle.loads(pickle.dumps(HttpEnv(**chosen)))
    assert env.new_session().settings == HttpEnv(**chosen).settings


def test_host_processes_play_on_a_server():
    async def play_in_a_host(chosen: dict[str, Any]) -> Episode:
        env = HttpEnv(**chosen)
        pool = process_pool(env, CallLimits(), PoolLimits(count=1))
        try:
            policy = ScriptedPolicy(["Action: 7"])
            return await play_episode(
                TaskItem("guess_number", "100:7"),
                PooledEnv(env, pool),
                ReAct(env.action_format),
                policy,
                EpisodeLimits(1),
            )
        finally:
            await pool.shutdown()

    with serving("guess_number", pool_of(GuessNumber)) as running:
        assert asyncio.run(play_in_a_host(options("guess_number", running.url))).reward == 1.0


# Settings


def test_the_token_comes_from_the_environment(monkeypatch):
    with serving("guess_number", pool_of(GuessNumber), token="open-sesame") as running:
        chosen = options("guess_number", running.url)
        for token, reason in ((None, "a token is needed"), ("wrong", "the token is wrong")):
            if token:
                monkeypatch.setenv("VERL_AGENT_TOKEN", token)
            with pytest.raises(ConfigError, match=f"answered 401: {reason}.*Set VERL_AGENT_TOKEN to the token"):
                make_env("http", chosen).tasks("train")
        monkeypatch.setenv("VERL_AGENT_TOKEN", "open-sesame")
        assert asyncio.run(solve(TaskItem("guess_number", "100:7"), chosen, ["Action: 7"])).reward == 1.0


def test_an_unreachable_server_names_the_command_that_starts_one():
    with pytest.raises(ConfigError) as error:
        make_env("http", options("textcraft", unused_url(), unused_url())).tasks("train")
    assert str(error.value).count("cannot be reached") == 2
    assert "Start a server with: verl-agent serve textcraft" in str(error.value)


def test_a_server_of_another_environment_raises_config_error():
    with (
        serving("guess_number", pool_of(GuessNumber)) as running,
        pytest.raises(ConfigError, match=f"env='textcraft', but {running.url} serves 'guess_number'"),
    ):
        make_env("http", options("textcraft", running.url)).tasks("train")


def smaller(tasks: TaskIndex) -> None:
    tasks.splits = {"train": GuessNumber().tasks("small_train")}


def changed(tasks: TaskIndex) -> None:
    tasks.splits = {
        name: [replace(item, data={**item.data, "target": 0}) for item in items] for name, items in tasks.splits.items()
    }


def easier(tasks: TaskIndex) -> None:
    tasks.success_reward = 0.5


@pytest.mark.parametrize("change", [smaller, changed, easier])
def test_servers_with_different_tasks_or_properties_raise_config_error(change):
    with ExitStack() as stack:
        one, two = (stack.enter_context(serving("guess_number", pool_of(GuessNumber))) for _ in range(2))
        change(two.server.tasks)
        with pytest.raises(ConfigError, match="offer different tasks"):
            make_env("http", options("guess_number", one.url, two.url)).tasks("train")


@pytest.mark.parametrize("change", [smaller, changed, easier])
def test_a_server_that_is_reached_later_with_different_tasks_raises_config_error(change):
    with ExitStack() as stack:
        listed, same, other = (stack.enter_context(serving("guess_number", pool_of(GuessNumber))) for _ in range(3))
        change(other.server.tasks)
        item = make_env("http", options("guess_number", listed.url)).tasks("train")[0]
        asyncio.run(begin(same.url, item))
        with pytest.raises(ConfigError, match=f"{other.url} offers different tasks or options.*Serve the same version"):
            asyncio.run(begin(other.url, item))
        wait_until(lambda: len(other.server.sessions) == 0)


async def begin(url: str, item: TaskItem) -> None:
    """Begin a task on a server."""
    session = make_env("http", options("guess_number", url)).new_session()
    try:
        await session.reset(item)
    finally:
        await session.close()


def test_a_server_that_sends_no_digest_plays_on():
    async def answer(socket: WebSocket) -> None:
        await socket.accept()
        await socket.receive_text()
        messages = [{"role": "user", "content": "Guess."}]
        observation = {"text": "Guess.", "metadata": {"messages": messages}}
        data = {"observation": observation, "reward": None, "done": False}
        await socket.send_json({"type": "observation", "data": data})

    info = Route("/info", lambda request: JSONResponse({"env": "guess_number", "digest": "", "idle_s": 60}))
    with serving_app(Starlette(routes=[WebSocketRoute("/ws", answer), info])) as running:
        asyncio.run(begin(running.url, TaskItem("guess_number", "1", {"digest": "of another server"})))


def test_changed_tasks_of_a_server_change_the_contents_that_a_run_remembers():
    with ExitStack() as stack:
        first, second, other = (stack.enter_context(serving("guess_number", pool_of(GuessNumber))) for _ in range(3))
        changed(other.server.tasks)
        envs = [make_env("http", options("guess_number", one.url)) for one in (first, second, other)]
        one, same, different = (task_contents(select_tasks(env, "small_train")) for env in envs)
    assert one == same != different


def test_a_server_that_sends_html_raises_config_error():
    page = Starlette(routes=[Route("/info", lambda request: PlainTextResponse("<html>"))])
    with serving_app(page) as running, pytest.raises(ConfigError, match="did not answer JSON: <html>"):
        make_env("http", options("textcraft", running.url)).tasks("train")


AGENTGYM = {"protocol": "agentgym", "items": {"train": "0"}}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"urls": []}, "env.options.urls must hold at least one URL"),
        ({"urls": ["127.0.0.1:8000"]}, "env.options.urls='127.0.0.1:8000' is not allowed. Allowed: URLs such as http"),
        ({"urls": ["http://a", "http://a/"]}, "lists a server twice"),
        ({"urls": 3}, "env.options.urls=3 is not allowed. Allowed: a list of texts or a text."),
        ({"url": "http://a"}, "env.options.url is not an option of 'http'. Did you mean 'urls'?"),
        ({"env": ""}, "env.options.env must name the environment"),
        ({"protocol": "agent_gym"}, "Did you mean 'agentgym'?"),
        ({"protocol": "agentgym"}, "env.options.items is missing"),
        (AGENTGYM | {"items": {"train": "0-"}}, "items.train='0-' is not allowed. Allowed: numbers and"),
        (AGENTGYM | {"items": {"train": "0-3,2"}}, "and none twice"),
        (AGENTGYM | {"env": "textcrat"}, "Did you mean 'textcraft'?"),
        (AGENTGYM | {"success_reward": 0}, "env.options.success_reward=0 is not allowed. Allowed: a number > 0"),
        ({"items": {"train": "0-3"}}, "env.options.items would have no effect: allowed only with protocol=agentgym"),
        ({"success_reward": 0.5}, "env.options.success_reward would have no effect"),
        ({"timeout_s": 0}, "env.options.timeout_s=0 is not allowed. Allowed: a number > 0."),
        ({"timeout_s": "5"}, "env.options.timeout_s='5' is not allowed. Allowed: a number > 0."),
    ],
)
def test_invalid_options_raise_config_error_naming_the_key(changed, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_env("http", options("textcraft", "http://127.0.0.1:1") | changed)


def test_parse_numbers_accepts_numbers_and_ranges():
    assert parse_numbers("train", "3, 0-2,7") == [3, 0, 1, 2, 7]


# Servers of AgentGym


SOLVED = {
    "textcraft": [("Got it.", 0.0, False), ("Crafted it.", 1.0, True)],
    "babyai": [("You see a ball.", 0.0, False), ("There.", 0.3, False)],
    "sciworld": [("It boils.", 20.0, False), ("It froze.", 80.0, True)],
    "searchqa": [("Wrong.", 0.2, False), ("Right.", 1.0, True)],
    "webarena": [("a tree", 0.0, False), ("a tree", 1.0, True)],
}
"""Answers of each environment's server to two actions that solve a task, in its own units."""
RETURNS = {"babyai": 0.3}
SENT = {"searchqa": "<search>north</search>", "webarena": "```go north```"}


@pytest.mark.parametrize("name", list(SOLVED))
def test_the_client_plays_on_each_server_of_agentgym(name):
    server = Server(name, SOLVED[name])
    with serving_app(server.app) as running:
        chosen = options(name, running.url, protocol="agentgym", items={"train": "0-9", "test": "10-12"})
        items = select_tasks(make_env("http", chosen), "test")
        assert [item.id for item in items] == [f"{name}_{number}" for number in (10, 11, 12)]
        episode = asyncio.run(
            solve(
                items[1],
                chosen,
                [DemoAction("<search>north</search>" if name == "searchqa" else "go north", "go.")] * 3,
            )
        )
    assert episode.stop is StopReason.TERMINATED
    assert (episode.reward, len(episode.turns)) == (pytest.approx(RETURNS.get(name, 1.0)), 2)
    assert episode.success
    assert server.item == 11
    prompt = [message["content"] for message in episode.messages[:3]]
    assert [message["role"] for message in episode.messages[:3]] == ["user", "assistant", "user"]
    assert prompt[1] == ("Ok." if name in SENT else AGREEMENT)
    first = {"searchqa": "Question 11", "webarena": "Question 11", "sciworld": "Task 11\nA room."}
    assert prompt[2] == first.get(name, "Task 11")
    assert [body["action"] for call, body in server.requests if call == "step"] == [SENT.get(name, "go north")] * 2


def play_on_agentgym(name: str, script: list[tuple[str, float, bool]], **more: Any) -> Episode:
    """Play all steps of a script on AgentGym's server of an environment."""
    with serving_app(Server(name, script).app) as running:
        chosen = options(name, running.url, protocol="agentgym", items={"train": "0"}, **more)
        return asyncio.run(solve(TaskItem(name, f"{name}_0"), chosen, [DemoAction("go")] * len(script)))


def test_a_solved_task_of_scienceworld_counts_in_spite_of_rounding():
    """The return is the sum of the differences between 0.09, 0.42, 0.91 and 1.0, which floats round to below 1."""
    episode = play_on_agentgym("sciworld", [("Fine.", score, False) for score in (9.0, 33.0, 49.0, 9.0)])
    assert sum([0.09, 0.42 - 0.09, 0.91 - 0.42, 1.0 - 0.91]) == pytest.approx(episode.reward)
    assert episode.success


def test_a_wrong_focus_in_scienceworld_has_a_return_of_minus_1():
    episode = play_on_agentgym("sciworld", [("Fine.", 20.0, False), ("No.", -120.0, True)])
    assert (episode.reward, episode.success, episode.stop) == (pytest.approx(-1.0), False, StopReason.TERMINATED)


@pytest.mark.parametrize(("reward", "solved"), [(0.001, True), (-0.4, False)])
def test_a_late_success_of_babyai_ends_the_episode(reward, solved):
    """Its reward falls below 0 after the limit of moves, and the server adds it again with every action."""
    episode = play_on_agentgym("babyai", [("Fine.", 0.0, False), ("There.", reward, False), ("There.", reward, False)])
    assert (episode.reward, len(episode.turns), episode.success) == (pytest.approx(reward), 2, solved)


@pytest.mark.parametrize(("threshold", "solved"), [(None, False), (0.4, True)])
def test_the_option_success_reward_replaces_the_default_one(threshold, solved):
    episode = play_on_agentgym("sciworld", [("Half.", 50.0, True)], success_reward=threshold)
    assert episode.success is solved


def test_the_option_instructions_replaces_the_default_ones():
    server = Server("textcraft", SOLVED["textcraft"])
    with serving_app(server.app) as running:
        chosen = options("textcraft", running.url, protocol="agentgym", items={"train": "0"}, instructions="Craft.")
        episode = asyncio.run(solve(TaskItem("textcraft", "textcraft_0"), chosen, [DemoAction("look")]))
    assert episode.messages[0] == {"role": "user", "content": f"Craft.\n\n{ReAct(LineFormat()).instruction()}"}
    assert server.requests[-1] == ("step", {"action": "look", "id": 7})


@pytest.mark.parametrize(("name", "item"), [("textcraft", 404), ("webarena", 408)])
def test_an_error_with_status_200_raises_env_error(name, item):
    server = Server(name, SOLVED[name])
    with serving_app(server.app) as running:
        chosen = options(name, running.url, protocol="agentgym", items={"train": str(item)})
        episode = asyncio.run(solve(TaskItem(name, f"{name}_{item}"), chosen, [DemoAction("x")]))
    assert episode.stop is StopReason.ENV_ERROR
    assert ("list index out of range" if item == 404 else "could not begin the task in time") in episode.error
