"""Test a judge on a server: rewards, cache, limits, failures, and answers that are asked for again."""

import json

import pytest

from tests.support.judged import episode, judged, settings, verdict
from tests.support.model_server import Fault, ModelServer, error
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.errors import ConfigError
from verl_agent.types import StopReason


def test_an_added_reward_changes_the_shaped_return_alone(tmp_path):
    with ModelServer(lambda messages: verdict(5)).running() as server:
        (solved,) = judged(settings(server, weight=0.4), tmp_path, episode("a", "b", reward=1.0))
    (made,) = solved.judgements
    assert made.score == pytest.approx(0.75 * 0.5 + 0.25) and made.reward == pytest.approx(0.25)
    assert (solved.reward, solved.success, made.replaced, made.turn) == (1.0, True, None, 1)
    assert [grade.reason for grade in made.grades] == ["It is.", "So so."]
    assert RewardShaping(place="turn", range=[0.0, 10.0]).rewards(solved) == pytest.approx([0.0, 0.1 + 0.25])
    assert solved.info_total("judge_score") == pytest.approx(0.625)


def test_a_replacing_reward_is_the_return_and_decides_on_success(tmp_path):
    with ModelServer(lambda messages: verdict(10 if "heard good" in messages[0].text else 2)).running() as server:
        chosen = settings(server, mode="replace", weight=2.0, success_score=0.8)
        good, bad, cut = judged(
            chosen, tmp_path, episode("a", "good"), episode("a", "b", reward=1.0), episode("good", "|")
        )
    assert (good.reward, good.success) == (2.0, True)
    assert (bad.reward, bad.success, bad.judgements[0].replaced) == (pytest.approx(0.8), False, 1.0)
    assert cut.turns[0].step and cut.turns[0].step.reward == 2.0


def test_each_turn_is_judged_with_the_episode_up_to_it(tmp_path):
    def model(messages):
        return verdict(10 if "Grade turn 2," in messages[0].text else 0, 0)

    with ModelServer(model).running() as server:
        (made,) = judged(settings(server, when="turn", mode="replace"), tmp_path, episode("a", "b", "c"))
        texts = sorted(body["messages"][0]["content"] for body in server.bodies)
    assert made.rewards == pytest.approx([0.0, 0.25, 0.0]) and [one.turn for one in made.judgements] == [0, 1, 2]
    assert made.info_total("judge_score") == pytest.approx(0.25)
    first = next(text for text in texts if "Grade turn 1," in text)
    assert "heard a" in first and "heard b" not in first and '"end"' not in first


def test_nothing_is_asked_about_an_episode_that_is_not_valid_or_has_no_step(tmp_path):
    with ModelServer(lambda messages: verdict(5)).running() as server:
        failed, silent = episode("a", stop=StopReason.ENV_ERROR), episode("|", stop=StopReason.TURN_TOKENS)
        judged(settings(server, mode="replace"), tmp_path, failed, silent)
    assert (server.all_bodies, silent.reward, silent.valid, silent.success) == ([], 0.0, True, False)


def test_an_equal_request_is_answered_from_the_cache_of_another_process(tmp_path):
    with ModelServer(lambda messages: verdict(5)).running() as server:
        judged(settings(server), tmp_path, episode("a"))
        kept = tmp_path / "judge" / "of-another-process"
        next((tmp_path / "judge").iterdir()).rename(kept)
        (again,) = judged(settings(server), tmp_path, episode("a"))
        assert len(server.bodies) == 1 and again.judgements[0].score == pytest.approx(0.625)
        judged(settings(server), tmp_path, episode("b"))
        judged(settings(server, cache=str(tmp_path / "judge")), tmp_path / "other", episode("b"))
    assert len(server.bodies) == 2


def test_the_cache_tells_servers_apart(tmp_path):
    """Several servers may give their models the same name, such as `default`."""
    with (
        ModelServer(lambda messages: verdict(5)).running() as first,
        ModelServer(lambda messages: verdict(9)).running() as second,
    ):
        cache = str(tmp_path / "cache")
        judged(settings(first, cache=cache), tmp_path / "1", episode("a"))
        (other,) = judged(settings(second, cache=cache), tmp_path / "2", episode("a"))
    assert len(second.bodies) == 1 and other.judgements[0].score == pytest.approx(0.75 * 0.9 + 0.25)


def test_requests_are_limited_in_number_and_concurrency_and_have_a_price(tmp_path):
    prices = {"prices": {"input": 10.0, "output": 10.0}}
    with ModelServer(lambda messages: verdict(5), delay_s=0.05).running() as server:
        limited = settings(server, prices, concurrency=2, max_requests=4)
        made = judged(limited, tmp_path, *map(episode, "abcd"))
        assert server.most_in_flight == 2
        assert all(one.judgements[0].cost_usd > 0 and one.info_total("judge_usd") > 0 for one in made)
        judged(limited, tmp_path, episode("a"))
        with pytest.raises(ConfigError, match=r"judge\.max_requests=4 is reached"):
            judged(limited, tmp_path, episode("e"))
        with pytest.raises(ConfigError, match=r"judge\.max_usd=0\.0001 is reached|is too low"):
            judged(settings(server, prices, max_usd=0.0001), tmp_path, episode("f"))


@pytest.mark.parametrize("most", [4, 5])
def test_the_shares_of_all_judges_do_not_exceed_the_limit_of_a_run(tmp_path, most):
    with ModelServer(lambda messages: verdict(5)).running() as server:
        shared = settings(server, max_requests=most)
        judged(shared, tmp_path / "1", *map(episode, "ab"), judges=2)
        with pytest.raises(ConfigError, match=rf"judge\.max_requests={most} is reached, in equal shares of 2 judges"):
            judged(shared, tmp_path / "2", *map(episode, "abc"), judges=2)


@pytest.mark.parametrize("faults", [[error(503, "Down.")] * 2, [error(400, "No.")] * 2, [Fault(body="<html>")] * 2])
def test_a_judge_that_is_down_is_an_environment_error_and_never_a_reward(tmp_path, faults):
    with ModelServer(lambda messages: verdict(10), faults=faults).running() as server:
        (made,) = judged(settings(server, mode="replace"), tmp_path, episode("a", reward=1.0))
    assert (made.stop, made.valid, made.judgements) == (StopReason.ENV_ERROR, False, [])
    assert made.error.startswith("the judge fake at http://127.0.0.1")


def test_a_judge_that_refuses_every_request_stops_the_run(tmp_path):
    with ModelServer(key="another").running() as server, pytest.raises(ConfigError, match=r"set judge\.api\.key_env"):
        judged(settings(server), tmp_path, episode("a"))


def test_an_answer_that_cannot_be_used_is_asked_for_again_and_then_a_named_error(tmp_path):
    answers = ["It is good.", verdict(11), verdict(6)]
    with ModelServer(lambda messages: answers.pop(0)).running() as server:
        (made,) = judged(settings(server), tmp_path, episode("a"))
        assert made.judgements[0].grades[0].score == 0.6
        corrections = [body["messages"][-1]["content"] for body in server.bodies[1:]]
        assert "no JSON object" in corrections[0] and "outside of 0 to 10" in corrections[1]
        answers += ["It is good.", "Really.", "Really, it is good."]
        (made,) = judged(settings(server), tmp_path, episode("b"))
    assert made.stop is StopReason.ENV_ERROR
    assert "gave 3 answers that cannot be used" in made.error and "Really, it is good." in made.error


def test_an_answer_that_the_token_limit_cut_is_asked_for_with_twice_the_limit(tmp_path):
    choice = {"message": {"role": "assistant", "content": verdict(6)[:40]}, "finish_reason": "length"}
    with ModelServer(lambda messages: verdict(6), faults=[Fault(body={"choices": [choice]})]).running() as server:
        (made,) = judged(settings(server, {"max_output_tokens": 100}), tmp_path, episode("a"))
    assert [body["max_tokens"] for body in server.all_bodies] == [100, 200]
    assert made.judgements[0].grades[0].score == 0.6 and json.dumps(server.bodies[0]["messages"])


def test_a_question_that_an_earlier_start_asked_in_vain_is_asked_anew(tmp_path):
    answers = {"text": '{"goal": 1}'}
    with ModelServer(lambda messages: answers["text"]).running() as server:
        for asked in (3, 6):
            (failed,) = judged(settings(server), tmp_path, episode("a"))
            assert failed.stop is StopReason.ENV_ERROR and len(server.bodies) == asked
        answers["text"] = verdict(5)
        (good,) = judged(settings(server), tmp_path, episode("a"))
        assert good.judgements[0].score == pytest.approx(0.625) and len(server.bodies) == 7
        judged(settings(server), tmp_path, episode("a"))
    assert len(server.bodies) == 7
