"""Function calls in episodes: several in one reply, their answers, their record, and their review."""

import asyncio
import json
import zipfile
from dataclasses import replace

import pytest

import verl_agent as va
from tests.support.attempts import play_until_valid
from tests.support.episodes import STARTED
from tests.support.fakes import ScriptedPolicy, talk_class
from tests.support.tool_envs import Garden
from verl_agent.agents.context import OMITTED, LastObservations
from verl_agent.agents.functions import FunctionCalls
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.tools import Tool, arguments
from verl_agent.errors import ConfigError
from verl_agent.messages import expanded
from verl_agent.oversight.approval import Approval
from verl_agent.oversight.rules import Rule
from verl_agent.results.failures import find_failures, summarize_failures
from verl_agent.results.failures_report import summary_lines
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.trace.episode_summary import summarize_episode
from verl_agent.trace.frame import write_parquet
from verl_agent.trace.metrics import episode_metrics
from verl_agent.trace.record import EpisodeMeta, parse_line, to_episode, to_record
from verl_agent.trace.turn_record import turn_text
from verl_agent.types import Episode, Message, StepResult, StopReason, ToolCall
from verl_agent.viewer.export.inspect_log import write_inspect_log

META = EpisodeMeta("evaluation", "test", 0, "g", 0, STARTED, seconds=1.0)


def call(name: str, **values: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': values})}</tool_call>"


DIG, COUNT, FINISH = call("dig", depth=2), call("count"), call("finish")
ROSE = call("plant", plant="rose", spot={"row": 1})


def play(*replies: str, overseer=None, context=None, env=None, **options) -> tuple[Episode, ScriptedPolicy]:
    env, policy = env or Garden(), ScriptedPolicy(replies)
    agent = FunctionCalls(env.action_format, context, **options)
    item = env.tasks("test")[0]
    limits = EpisodeLimits(len(replies))
    return asyncio.run(play_episode(item, env, agent, policy, limits, overseer)), policy


def test_several_calls_are_played_in_order_within_one_turn_and_each_has_its_answer():
    episode, _ = play(f"I work.\n{ROSE}\n{call('dig', depth='x')}\n{COUNT}{call('fnish')}\n{FINISH}")
    (turn,) = episode.turns
    assert (episode.success, episode.reward, turn.step.terminated) == (True, 1.0, True)
    answers = episode.messages[-1]["answers"]
    assert [answer.partition(" ")[0] for answer in answers] == ["planted", "dig", "1", "There", "Done."]
    assert [one.errors for one in turn.calls] == [(), ("wrong_argument",), (), ("unknown_function",), ()]
    assert [action.name for action in turn.actions] == ["plant", "count", "finish"]
    assert turn.step.info["calls"] == 5 and turn.step.info["call_error"] == 2
    assert [one["role"] for one in expanded(episode.messages[-1:])] == ["tool"] * 5


def test_a_call_after_the_end_of_the_task_is_answered_as_not_done():
    episode, _ = play(ROSE + FINISH + COUNT)
    assert episode.messages[-1]["answers"][2] == "count was not carried out: the task has ended."
    assert episode.turns[0].calls[2].errors == ("not_done",) and len(episode.turns[0].actions) == 2


@pytest.mark.parametrize(("limit", "done"), [(1, 1), (2, 2), (None, 3)])
def test_a_limit_carries_out_the_first_calls_and_says_that_the_others_were_not(limit, done):
    episode, _ = play(DIG + COUNT + DIG, max_calls=limit)
    (turn,) = episode.turns
    assert len(turn.actions) == done
    left_out = [answer for answer in episode.messages[-1]["answers"] if "was not carried out: only" in answer]
    assert len(left_out) == 3 - done
    assert turn.step.info.get("call_error_not_done", 0) == 3 - done and "call_error" not in turn.step.info


def test_an_environment_of_lines_takes_one_call_unless_told_otherwise():
    env = talk_class()()
    env.action_format = LineFormat((Tool("say", "Say it.", arguments(text={"type": "string"}), "say {text}"),))
    two = call("say", text="a") + call("say", text="b")
    episode, _ = play(two, env=env)
    assert episode.turns[0].actions == ("say a",) and "only one call" in episode.messages[-1]["content"]
    episode, _ = play(two, env=env, max_calls=2)
    assert episode.turns[0].actions == ("say a", "say b")


def test_an_error_is_the_answer_to_its_call_and_a_missing_call_is_told_by_the_user():
    episode, _ = play(call("dig", depth="x"), "Well.", DIG)
    assert [one["role"] for one in episode.messages[3::2]] == ["tool", "user", "tool"]
    assert "50 cm" in episode.messages[-1]["content"]


def test_the_turns_left_stand_at_the_end_of_the_last_answer():
    env = Garden()
    agent = va.make_agent("tools", env.action_format, turns_left=True)
    episode = va.play_sync(env.tasks("test")[0], env, policy=lambda _: DIG + COUNT, agent=agent, max_turns=2)
    assert episode.messages[3]["answers"] == ["50 cm", "0\n\nTurns left: 1"]


def test_an_observation_that_is_left_out_still_answers_each_call():
    _, policy = play(DIG + COUNT, COUNT, COUNT, context=LastObservations(turns=1))
    assert policy.heard[2][3]["answers"] == [OMITTED, OMITTED]


def test_the_record_has_the_calls_as_json_and_becomes_the_same_episode():
    episode, _ = play(ROSE + call("digg") + COUNT, call("plant", plant=" größer\n", spot={"row": 2}), FINISH)
    record = parse_line(json.dumps(to_record(episode, META)).encode())
    assert record["turns"][1]["action"] == {"name": "plant", "arguments": {"plant": " größer\n", "spot": {"row": 2}}}
    assert [one["errors"] for one in record["turns"][0]["calls"]] == [[], ["unknown_function"], []]
    again = to_episode(record)
    assert [turn.actions for turn in again.turns] == [turn.actions for turn in episode.turns]
    assert again.messages == episode.messages
    assert (
        turn_text(record["turns"][1]) == '{"name": "plant", "arguments": {"plant": " größer\\n", "spot": {"row": 2}}}'
    )
    assert turn_text(record["turns"][0]).count("\n") == 1


def test_one_call_that_raised_is_recorded_with_its_kind():
    episode, _ = play(call("dig", depth=0), COUNT)
    first, second = to_record(episode, META)["turns"]
    (failed,) = first["calls"]
    assert (failed["name"], failed["errors"]) == ("dig", ["function_failed"]) and "calls" not in second
    assert failed["action"] == {"name": "dig", "arguments": {"depth": 0}}


class Flooding(Garden):
    """A garden in which each plant has a reward, and whose sessions a hole floods."""

    async def step(self, action: ToolCall) -> StepResult:
        if action.name == "dig":
            raise KeyError("flooded")
        return replace(await super().step(action), reward=0.25)


def test_the_rewards_of_the_calls_before_one_that_fails_are_kept():
    env = Flooding()
    item, limits = env.tasks("test")[0], EpisodeLimits(2, retries=2)
    replies = [ROSE, ROSE + call("fnish") + COUNT + DIG + COUNT]
    (episode,) = asyncio.run(
        play_until_valid(
            item, Flooding, lambda: FunctionCalls(env.action_format), lambda: ScriptedPolicy(replies), limits
        )
    )
    assert (episode.stop, episode.reward, len(episode.turns[1].played)) == (StopReason.ACTION_ERROR, 0.75, 2)
    assert RewardShaping(place="turn").rewards(episode) == [0.25, 0.5]
    record = to_record(episode, META)
    assert (record["reward"], record["turns"][1]["reward"]) == (0.75, 0.5)
    assert [one["observation"] is None for one in record["turns"][1]["calls"]] == [False, False, False, True, True]


def test_metrics_and_failures_count_faulty_calls_by_kind():
    episode, _ = play(DIG + call("digg"), "Well.", COUNT)
    assert episode_metrics([summarize_episode(episode)])["call/error_rate"] == 0.5
    record = to_record(episode, META)
    failed = find_failures([record], Garden())
    assert failed[0].call_errors == {"unknown_function": 1, "no_call": 1}
    (summary,) = summarize_failures([record], failed)
    assert "Faulty function calls: unknown_function (1×), no_call (1×)." in summary_lines(summary)


def test_an_inspect_log_has_the_calls_and_an_answer_for_each(tmp_path):
    episode, _ = play(f"I work.{DIG}{call('digg')}", COUNT, "Well.")
    assert write_inspect_log([to_record(episode, META)], tmp_path / "log.eval", "run") == 1
    with zipfile.ZipFile(tmp_path / "log.eval") as file:
        name = next(name for name in file.namelist() if name.startswith("samples/"))
        messages = json.loads(file.read(name))["messages"]
    both, one, none = (message for message in messages if message["role"] == "assistant")
    assert [(made["function"], made["arguments"]) for made in both["tool_calls"]] == [
        ("dig", {"depth": 2}),
        ("digg", {}),
    ]
    assert "no function" in both["tool_calls"][1]["parse_error"]
    assert len(one["tool_calls"]) == 1 and "tool_calls" not in none
    answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert answered == [made["id"] for message in (both, one) for made in message["tool_calls"]]
    assert all("answers" not in message for message in messages)


def rules(**rejected: str) -> Approval:
    env = Garden()
    return Approval(
        [Rule(actions=["dig"], decision="reject", **rejected), Rule(actions=["*"], decision="approve")],
        env.describe_action,
    )


def test_a_rule_about_any_call_of_a_reply_decides_on_all_of_them():
    episode, _ = play(COUNT + DIG, overseer=rules())
    assert episode.turns[0].reply.review.decision == "rejected" and episode.turns[0].actions == ()
    assert [answer.startswith("The action was not carried out") for answer in episode.messages[-1]["answers"]] == [
        True
    ] * 2
    episode, _ = play(COUNT + COUNT, overseer=rules())
    assert len(episode.turns[0].actions) == 2


def test_a_rule_reads_the_arguments_of_a_call():
    episode, _ = play(DIG, overseer=rules(text='"depth": 3'))
    assert len(episode.turns[0].actions) == 1
    episode, _ = play(call("dig", depth="3"), overseer=rules(text='"depth": 3'))
    assert episode.turns[0].actions == ()


def test_options_that_are_not_allowed_are_named():
    for value in (0, True, "2"):
        with pytest.raises(ConfigError, match=r"agent\.options\.max_calls"):
            FunctionCalls(Garden.action_format, max_calls=value)


def test_agents_without_functions_read_the_list_of_them():
    agent = va.make_agent("react", Garden.action_format)
    prompt: list[Message] = [{"role": "system", "content": "Tend."}, {"role": "user", "content": "Plant."}]
    shown = agent.build_prompt(prompt)[0]["content"]
    assert all(f'"name": "{tool.name}"' in shown for tool in Garden.action_format.tools)
    assert "Schuppen" not in shown and va.make_agent("tools", Garden.action_format).build_prompt(prompt)[0][
        "content"
    ].startswith("Tend.\n\nCall one or several functions, at most 8,")


def test_non_ascii_text_is_written_as_itself():
    agent = FunctionCalls(Garden.action_format, calls="smollm2")
    demo = va.DemoAction(ToolCall("plant", {"plant": "größer", "spot": {"row": 1}}))
    assert "größer" in agent.render_demo([demo], 0)


def test_parquet_has_calls_as_text(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install 'verl-agent[eval]'")
    episode, _ = play(DIG + COUNT, COUNT)
    write_parquet([to_record(episode, META)], tmp_path / "a.parquet")
    (row,) = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert [step["action"] for step in row["steps"]] == [str(turn.action) for turn in episode.turns]
    assert len(json.loads(row["steps"][0]["calls"])) == 2 and row["steps"][1]["calls"] is None
