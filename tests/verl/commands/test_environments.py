"""Test `verl-agent envs`: the list of environments and the prompt lengths of a split."""

import re

import pytest
from typer.testing import CliRunner

from tests.support.models import write_byte_model
from verl_agent.commands.cli import app
from verl_agent.training.preflight.prompts import PromptLengths


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """Random llama with a byte-level tokenizer, so that token counts depend on nothing downloaded."""
    return str(write_byte_model(tmp_path_factory.mktemp("model"), ["Guess a number."], vocabulary=300))


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["envs", *arguments])
    return result.exit_code, result.output


def test_prompt_lengths_of_a_split_are_measured(model):
    code, output = run("guess_number", "--tokens", model, "--split", "small_train", "--agent", "raw")
    assert code == 0, output
    first, measured, oracle, suggested = output.splitlines()
    assert first == f"guess_number, split small_train, agent raw (--agent for another), model {model}"
    numbers = re.fullmatch(
        r"(\d+) of \1 prompts, in tokens: min (\d+), median (\d+), 95 % (\d+), max (\d+) \(task '.+'\)", measured
    )
    assert numbers, measured
    lengths = [int(number) for number in numbers.groups()[1:]]
    assert 0 < lengths[0] <= lengths[1] <= lengths[2] <= lengths[3]
    assert oracle.startswith("51 episodes of the oracle: 4 turns (95 %), at most 4;")  # bisection of at most 11 numbers
    assert lengths[3] <= int(suggested.removeprefix("Suggested: data.max_prompt_length=")) < lengths[3] + 64


def test_the_agent_is_part_of_the_prompt(model):
    def longest(agent: str) -> int:
        _, output = run("guess_number", "--tokens", model, "--split", "small_train", "--agent", agent, "--tasks", "1")
        return int(re.search(r"max (\d+)", output)[1])

    assert longest("react") > longest("raw")


def test_a_line_is_shown_before_the_measurement():
    _, output = run("guess_number", "--tokens", "./missing")
    assert output.startswith("guess_number, split train, agent react")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "smollm2-135m"], "--tokens needs the name of an environment"),
        (["gess_number", "--tokens", "x"], "env.name='gess_number' is not registered. Did you mean 'guess_number'?"),
        (["guess_number", "--tokens", "./x"], "--tokens='./x' does not exist"),
        (["guess_number", "--tokens", "x", "--split", "tset"], "GuessNumber has no split 'tset'. Did you mean"),
        (["guess_number", "--tokens", "x", "--agent", ""], "agent.name='' is not registered. Known: act, "),
        (["guess_number", "--tokens", "x", "--options", "["], "--options is not JSON"),
    ],
)
def test_invalid_arguments_are_explained(arguments, message):
    code, output = run(*arguments)
    assert code == 2
    assert message in output


def test_the_suggestion_covers_the_longest_prompt_and_tasks_that_were_left_out():
    assert PromptLengths({"a": 100, "b": 128}, tasks=2).suggested == 128
    assert PromptLengths({"a": 100, "b": 128}, tasks=9).suggested == 192
    assert PromptLengths({"a": 100, "b": 128}, tasks=2).longest == "b"


def test_the_help_of_recipe_commands_names_overrides_and_cfg_job():
    for command in ("train", "sft", "dpo", "evolve", "eval"):
        output = CliRunner().invoke(app, [command, "--help"]).output
        assert "--cfg job" in output
        assert "KEY=VALUE" in output
