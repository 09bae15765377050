"""Test questions, scores, feedback and refusals of the adapter of reasoning-gym."""

import asyncio
import re

import pytest

pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed: pip install 'verl-agent[reasoning_gym]'")

from env_adapters.reasoning_gym import verifiers
from env_adapters.reasoning_gym.adapter import ReasoningGym
from verl_agent.envs.testing.check import check_adapter
from verl_agent.errors import ConfigError
from verl_agent.types import reaches


def play(env, *answers):
    async def episode():
        await env.reset(env.tasks("train")[0])
        return [await env.step(answer) for answer in answers]

    return asyncio.run(episode())


def right(env):
    return env.demonstration(env.tasks("train")[0])[0].action


def test_the_generators_answer_earns_the_full_score_once():
    env = ReasoningGym()
    steps = play(env, right(env), right(env))
    assert [(step.reward, step.terminated) for step in steps] == [(1.0, True), (0.0, True)]


def test_one_turn_ends_with_a_wrong_answer():
    (step,) = play(ReasoningGym(), "<answer>no number</answer>")
    assert step.terminated and step.reward < 1


def test_several_turns_give_feedback_and_reward_only_the_gain():
    env = ReasoningGym(turns=3)
    steps = play(env, "<answer>nothing</answer>", "no tag", right(env))
    assert "Attempts left: 2." in steps[0].observation
    assert steps[1].info == {"invalid_action": 1.0}
    assert sum(step.reward for step in steps) == pytest.approx(1.0)
    assert [step.terminated for step in steps] == [False, False, True]


def test_partial_scores_add_up_to_the_best_one():
    env = ReasoningGym("word_sorting", turns=3)
    answer = right(env).removeprefix("<answer>").removesuffix("</answer>")
    part = f"<answer>{', '.join(reversed(answer.split(', ')))}</answer>"
    steps = play(env, part, part, part)
    assert steps[1].reward == steps[2].reward == 0.0
    assert sum(step.reward for step in steps) < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": "chain_sums"}, r"names='chain_sums' is no generator of reasoning-gym\. Did you mean 'chain_sum'\?"),
        ({"turns": 0}, r"env\.options\.turns=0 is not allowed\. Allowed: a whole number from 1 to 100"),
        ({"config": {"seed": 3}}, r"env\.options\.config\.seed is not allowed: the task sets it"),
    ],
)
def test_options_that_are_not_allowed_raise_config_error(options, message):
    with pytest.raises(ConfigError, match=message):
        ReasoningGym(**options)


def test_an_argument_that_a_generator_lacks_raises_config_error():
    env = ReasoningGym(config={"no_such_argument": 1})
    with pytest.raises(ConfigError, match=r"config=\{'no_such_argument': 1\} does not fit 'chain_sum'"):
        play(env)


def test_several_turns_keep_the_contract():
    options = {"names": ["chain_sum", "mini_sudoku"], "turns": 3, "train": 10, "test": 3}
    report = check_adapter(ReasoningGym, options, 2, name="reasoning_gym", budget_s=3)
    assert not report.violations, str(report)


def test_rounding_of_gains_does_not_lose_a_success():
    assert reaches([0.41, 0.92 - 0.41, 1.0 - 0.92], ReasoningGym.success_reward)


@pytest.mark.parametrize(("score", "solved"), [(1.0, True), (1.0 - 6e-8, True), (1.0 - 1e-6, False)])
def test_an_answer_is_right_exactly_if_its_score_counts_as_a_success(score, solved):
    class Scored(ReasoningGym):
        def _score(self, dataset, entry, answer):
            return score

    (step,) = play(Scored(turns=3), "<answer>anything</answer>")
    assert (step.observation == "Right.", step.terminated) == (solved, solved)
    assert reaches([step.reward], Scored.success_reward) is solved


def test_a_generator_whose_questions_differ_between_processes_is_not_seeded():
    assert not ReasoningGym(["chain_sum", "ransom_note"]).seeded
    assert ReasoningGym("chain_sum").seeded


@pytest.mark.parametrize(
    ("name", "constant"),
    [
        *(("coin_flip", text) for text in ("0", "0.5", "1")),
        *(("game_of_life_halting", text) for text in ("yes", "anything", "nan")),
        *(("complex_arithmetic", text) for text in ("nan", "nan+nanj", "inf", "-Infinity + 2i")),
    ],
)
def test_a_constant_that_a_verifier_of_reasoning_gym_takes_earns_little(name, constant):
    """Without the corrections the means are 1.00 for `0` and `nan`, and for any text in `game_of_life_halting`."""
    env = ReasoningGym(name, train=40)

    async def score(item):
        await env.reset(item)
        return (await env.step(f"<answer>{constant}</answer>")).reward

    assert sum(asyncio.run(score(item)) for item in env.tasks("train")) < 10
    assert play(env, right(env))[0].reward == 1.0


def test_four_other_numbers_make_no_24():
    env, texts = ReasoningGym("puzzle24", train=20), ("1*3*5 + 9", "6*4*1*1", "24")
    for item in env.tasks("train"):
        for text in texts:
            asyncio.run(env.reset(item))
            numbers = env._entry["metadata"]["numbers"]
            (step,) = [asyncio.run(env.step(f"<answer>{text}</answer>"))]
            assert step.reward < 0.1 or sorted(numbers) == sorted(map(int, re.findall(r"[0-9]+", text)))
    assert play(env, right(env))[0].reward == 1.0


@pytest.mark.parametrize("name", sorted(verifiers.LITERALS | verifiers.ARITHMETIC | verifiers.FORMULAS))
def test_an_answer_is_never_run_as_a_program(name, tmp_path):
    """Verifiers of reasoning-gym call `eval`, or functions of SymPy that call it, with an answer."""
    file = tmp_path / "written"
    call = f"open({str(file)!r}, 'w')"
    quoted = ".".join(f"chr({ord(one)})" for one in "x")
    for answer in (call, f"exec({call!r})", f"[{call}]", f"[[{call}]]", f"({call},)", f"eval({quoted})", "9**9**9**9"):
        (step,) = play(ReasoningGym(name), f"<answer>{answer}</answer>")
        assert step.reward < 0.1 and not file.exists()
    for seed in range(8):
        env = ReasoningGym(name, train=8)
        item = env.tasks("train")[seed]
        asyncio.run(env.reset(item))
        assert asyncio.run(env.step(env.demonstration(item)[0].action)).reward == 1.0
