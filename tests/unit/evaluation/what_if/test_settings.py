"""Test names of recorded episodes, their files of results, and the settings that are taken from their run."""

import asyncio
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.episodes import talk
from tests.support.evaluated_games import evaluated
from tests.support.model_server import ModelServer
from tests.support.what_if import RUN, of_evaluation, of_run, recorded_game
from verl_agent.envs.model_api.reply_log import FILE as REPLY_LOG
from verl_agent.errors import ConfigError
from verl_agent.evaluation.recorded_play import FILE as PLAY
from verl_agent.evaluation.what_if.recorded import RecordedEpisode, TurnQuestion, find_episode, fingerprint
from verl_agent.evaluation.what_if.results import (
    VERSION,
    Result,
    append_results,
    check_writable,
    read_results,
    results_file,
)
from verl_agent.evaluation.what_if.run import answer_question, check, draw_samples
from verl_agent.evaluation.what_if.settings import settings_of
from verl_agent.trace.record import Purpose

LENGTHS = {"max_prompt_length": 64, "max_response_length": 64}

# Names


def test_an_episode_is_named_by_file_or_folder_and_line(tmp_path: Path):
    recorded = recorded_game(tmp_path)
    assert recorded.record["sample"] == 1
    assert find_episode(f"{tmp_path}:2") == find_episode(recorded.name) == recorded
    assert find_episode(f"{tmp_path}:1").fingerprint != recorded.fingerprint


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{folder}/episodes.jsonl", "names no recorded episode. Allowed: FILE:LINE"),
        ("{folder}/episodes.jsonl:0", "names no recorded episode"),
        ("{folder}/episodes.jsonl:3", "has 2 lines"),
        ("{folder}/missing.jsonl:1", "no such file"),
        ("{folder}/notes.txt:1", "is no episode record"),
    ],
)
def test_a_name_without_an_episode_is_an_error(tmp_path: Path, name: str, message: str):
    recorded_game(tmp_path)
    (tmp_path / "notes.txt").write_text("{}\n")
    with pytest.raises(ConfigError, match=message):
        find_episode(name.format(folder=tmp_path))


def test_an_episode_after_the_turns_of_another_is_refused(tmp_path: Path):
    (tmp_path / "episodes.jsonl").write_text(json.dumps({**talk(), "given_turns": 2}) + "\n")
    with pytest.raises(ConfigError, match=r"begins with turns of another episode \(horizon\.replay\)"):
        find_episode(f"{tmp_path}:1")


def test_a_folder_with_several_files_is_an_error(tmp_path: Path):
    recorded_game(tmp_path)
    (tmp_path / "more.jsonl").write_text(json.dumps(talk()) + "\n")
    with pytest.raises(ConfigError, match=r"holds 2 files of records\. Name one of them: .*episodes\.jsonl"):
        find_episode(f"{tmp_path}:1")


def test_a_fingerprint_does_not_depend_on_the_line_break():
    assert fingerprint(b"{}\r\n") == fingerprint(b"{}\n") == fingerprint(b"{}")


# Results


def result(**values: object) -> dict:
    place = {"version": VERSION, "episode": "a", "task": "1", "turn": 1, "model": "m", "temperature": 1.0, "top_p": 1.0}
    place |= {"seed": 1, "settings": "", "indexes": [], "measured_at": "2026-01-01T00:00:00+00:00"}
    return {**place, "kind": "replies", "with_thought": True, "replies": [], **values}


def test_lines_that_are_no_results_of_this_version_are_skipped_and_logged(tmp_path: Path, caplog):
    file = tmp_path / "episodes.jsonl.what_if"
    lines = [json.dumps(result()), json.dumps(result(version=1)), json.dumps(result(turn="1")), '{"version": 1, "ki']
    file.write_text("\n".join(lines))
    with caplog.at_level(logging.WARNING):
        assert read_results(file) == [result()]
    assert "version: Input should be 2" in caplog.text
    assert "turn: Input should be a valid integer" in caplog.text


def test_results_after_an_unfinished_line_are_read(tmp_path: Path):
    file = tmp_path / "episodes.jsonl.what_if"
    file.write_text('{"version": 1, "ki')
    append_results(file, [result()])
    append_results(file, [result(turn=2)])
    assert [one["turn"] for one in read_results(file)] == [1, 2]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be written"):
        append_results(tmp_path / "missing" / "episodes.jsonl.what_if", [result()])
    with pytest.raises(ConfigError, match="cannot be written"):
        check_writable(tmp_path / "missing" / "episodes.jsonl.what_if")


# Settings


def test_an_episode_of_an_evaluation_is_asked_with_its_settings(tmp_path: Path):
    settings = settings_of(of_evaluation(tmp_path), [])
    assert (settings.config.model, settings.config.evaluation.temperature, settings.config.evaluation.seed) == (
        "random",
        0.5,
        3,
    )
    assert settings.config.run.agent.name == "act"
    assert settings.config.run.episode.max_tokens_per_turn == 9
    assert settings.config.data.max_prompt_length == 70
    assert settings.config.run.horizon.turns_for_evaluation() == 4, "the turn limit of the episode"


def test_a_torn_file_of_settings_is_named(tmp_path: Path):
    recorded = of_evaluation(tmp_path)
    (tmp_path / PLAY).write_bytes(b"\0" * 9)
    with pytest.raises(ConfigError, match=rf"{PLAY} is not readable .*Restore it, or start the run again"):
        settings_of(recorded, [])


def test_the_checksum_of_settings_changes_with_those_on_which_samples_depend(tmp_path: Path):
    recorded = of_evaluation(tmp_path)
    texts = ([], ["evaluation.temperature=0.5"], ["episode.max_tokens_per_turn=11"], ["agent.options.turns_left=true"])
    same, sampled, *others = (settings_of(recorded, text).checksum() for text in texts)
    assert same == sampled, "temperature has a field of its own"
    assert len({same, *others}) == 3


@pytest.mark.parametrize(
    "override",
    [
        "model.api.options.reasoning_effort=high",
        "model.api.max_output_tokens=20",
        "model.api.base_url=http://127.0.0.1:8000/v1",
    ],
)
def test_the_checksum_of_a_model_behind_an_api_changes_with_its_server_and_options(tmp_path: Path, override: str):
    recorded = of_evaluation(tmp_path, "openai:gpt", api={"kind": "openai", "name": "gpt"}, data=LENGTHS)
    checksums = {settings_of(recorded, given).checksum() for given in ([], ["model.api.timeout_s=9"], [override])}
    assert len(checksums) == 2, "a timeout changes no reply"


def test_an_override_wins_over_the_recorded_setting(tmp_path: Path):
    overrides = [
        "model.path=oracle",
        "evaluation.temperature=0.1",
        "horizon.eval_max_turns=7",
        "env.hosts.where=inline",
    ]
    settings = settings_of(of_evaluation(tmp_path), [*overrides, "env.hosts.where=inline"])
    assert (settings.config.model, settings.config.evaluation.temperature) == ("oracle", 0.1)
    assert settings.config.run.horizon.turns_for_evaluation() == 7
    assert settings.config.run.env.hosts.where == "inline"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("evaluation.temprature=1", "evaluation.temprature is not a setting.*Did you mean 'temperature'"),
        ("evaluation.temperature=hot", r"evaluation\.temperature='hot'"),
        ("--temperature", "Allowed: KEY=VALUE"),
        ("env.name=textcraft", r"was played in 'guess_number'"),
    ],
)
def test_an_override_that_is_not_allowed_is_an_error(tmp_path: Path, override: str, message: str):
    with pytest.raises(ConfigError, match=message):
        settings_of(of_evaluation(tmp_path), [override])


def test_an_episode_of_a_model_behind_an_api_is_asked_with_the_same_model(tmp_path: Path):
    recorded = of_evaluation(tmp_path, "openai:gpt", api={"kind": "openai", "name": "gpt"}, data=LENGTHS)
    config = settings_of(recorded, []).config
    assert (config.model, config.api is not None) == ("openai:gpt", True)
    other = settings_of(recorded, ["model.path=random"]).config
    assert (other.model, other.api) == ("random", None)


def test_an_episode_of_a_training_run_is_asked_with_the_settings_of_the_run(tmp_path: Path):
    settings = settings_of(of_run(tmp_path), [])
    config = settings.config
    assert settings.config.model == "smollm2-135m", "the weights of the first step are those of the recipe"
    assert dict(config.run.env.options) == {"tolerant": True}
    assert (config.evaluation.temperature, config.evaluation.top_p) == (0.8, 0.9)
    assert (config.data.max_prompt_length, config.data.max_response_length) == (70, 50)
    assert config.data.apply_chat_template_kwargs == {"thinking": False}
    assert (config.run.episode.on_truncated_turn, config.run.episode.seeded_sampling) == ("play", False)
    assert config.run.agent.options == {"instructions": False}


def test_a_recorded_text_is_not_interpolated_again(tmp_path: Path):
    text = r"${oc.env:HOME} and \${x} and ${missing}"
    trained = of_run(tmp_path, settings={**RUN, "agent": {"name": "act", "options": {"prompt": [text]}}})
    assert settings_of(trained, []).config.run.agent.options == {"prompt": [text]}
    (tmp_path / "evaluation").mkdir()
    evaluation = of_evaluation(tmp_path / "evaluation", agent={"name": "act", "options": {text: text}})
    assert settings_of(evaluation, []).config.run.agent.options == {text: text}


@pytest.mark.parametrize(("purpose", "step", "updates"), [("train", 3, 2), ("validation", 3, 3), ("test", 2, 2)])
def test_a_step_is_asked_with_the_weights_that_played_it(tmp_path: Path, purpose: Purpose, step: int, updates: int):
    for number in (1, 2, 3):
        (tmp_path / f"global_step_{number}").mkdir()
    settings = settings_of(of_run(tmp_path, step, purpose), [])
    assert settings.config.model == str(tmp_path / f"global_step_{updates}")
    assert settings.config.evaluation.temperature == (0.8 if purpose == "train" else 1.0)


def test_weights_that_were_not_kept_are_an_error_that_names_the_nearest(tmp_path: Path):
    for number in (10, 20):
        (tmp_path / f"global_step_{number}").mkdir()
    recorded = of_run(tmp_path, 18)
    with pytest.raises(
        ConfigError, match=rf"global_step_17, .* Kept: 10, 20\. .*model\.path={tmp_path}/global_step_20"
    ):
        settings_of(recorded, [])
    assert settings_of(recorded, ["model.path=random"]).config.model == "random"


def test_the_entry_of_a_mixture_is_found_by_its_environment(tmp_path: Path):
    mixture = [{"name": "textcraft"}, {"name": "guess_number", "episode": {"max_tokens_per_turn": 5, "max_tokens": 40}}]
    recorded = of_run(tmp_path, settings={**RUN, "env": {"name": "both", "mixture": mixture}})
    config = settings_of(recorded, []).config
    assert (config.run.env.name, config.run.episode.max_tokens_per_turn) == ("guess_number", 5)
    assert config.data.max_response_length == 40
    twice = {**RUN, "env": {"name": "both", "mixture": [*mixture, {"name": "guess_number", "label": "again"}]}}
    assert settings_of(of_run(tmp_path, settings=twice), []).config.run.episode.max_tokens_per_turn == 5
    again = of_run(tmp_path, settings=twice, env_label="again")
    assert settings_of(again, []).config.run.episode.max_tokens_per_turn == 8
    with pytest.raises(ConfigError, match="records no environment 'other'"):
        settings_of(of_run(tmp_path, settings=twice, env_label="other"), [])


def test_records_without_settings_need_a_recipe(tmp_path: Path):
    recorded = recorded_game(tmp_path)
    with pytest.raises(ConfigError, match="Give an evaluation recipe"):
        settings_of(recorded, [])
    recipe = ROOT / "recipes/guess_number/eval_cpu.yaml"
    settings = settings_of(recorded, ["model.path=random", "env.hosts.where=inline"], recipe)
    assert (settings.config.model, settings.config.run.env.name) == ("random", "guess_number")
    with pytest.raises(ConfigError, match="does not exist"):
        settings_of(recorded, [], tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match=r"model\.path"):
        settings_of(recorded, [], recipe)


# From the settings of the run to the stored result


def ask(recorded: RecordedEpisode, *overrides: str, **question: object) -> list[Result]:
    asked = TurnQuestion(recorded, 2, **question)  # type: ignore[arg-type]
    settings = settings_of(recorded, ["env.hosts.where=inline", *overrides])
    asyncio.run(draw_samples(asked, settings, check(asked, settings), print))
    return read_results(results_file(recorded.file))


def test_a_question_is_answered_with_the_settings_of_the_run(tmp_path: Path, capsys):
    agent = {"name": "react", "options": {}, "context": {}}
    recorded = of_evaluation(tmp_path, "python:tests.support.policies:seven", agent=agent)
    (replies,) = ask(recorded, samples=3)
    assert replies["kind"] == "replies"
    assert [reply["action"] for reply in replies["replies"]] == ["7"] * 3
    _, before, after = ask(recorded, samples=2, action="9")
    assert before["kind"] == after["kind"] == "continuations"
    assert [episode["actions"] for episode in before["episodes"]] == [["6", "7"]] * 2
    assert [episode["actions"] for episode in after["episodes"]] == [["9", "7"]] * 2
    oracle = ask(recorded, samples=1, oracle=True)[-1]
    assert oracle["kind"] == "continuations"
    assert (oracle["source"], oracle["action"]) == ("oracle", "7")
    assert "the oracle takes: 7" in capsys.readouterr().out


def test_a_line_is_shown_before_the_model_is_checked(tmp_path: Path):
    asked, lines = TurnQuestion(of_evaluation(tmp_path, "random"), 2, 1), list[str]()
    with pytest.raises(ConfigError, match="has one reply at each turn"):
        answer_question(asked, settings_of(asked.recorded, ["model.path=oracle"]), lines.append)
    assert lines == ["checking oracle and the question ..."]


def test_a_perturbed_evaluation_is_replayed_with_its_perturbations(tmp_path: Path):
    """The replay is compared with the record, whose observations have the perturbations."""
    folder = evaluated(tmp_path / "out", "cheap", perturb={"distractors": 2, "observation_noise": 0.5})
    lines = len((folder / "episodes.jsonl").read_text().splitlines())
    recorded = find_episode(f"{folder / 'episodes.jsonl'}:{lines}")  # the last one to end has all turns
    _, after = ask(recorded, "model.path=random", samples=1, action="1000")
    assert [episode["actions"][0] for episode in after["episodes"]] == ["1000"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.path=oracle"], "has one reply at each turn"),
        (["model.path=random", "evaluation.temperature=0"], "would be equal"),
        (["model.path=python:tests.support.policies:eight"], "has no 'eight'"),
    ],
)
def test_a_policy_that_cannot_be_asked_is_an_error(tmp_path: Path, overrides: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        ask(of_evaluation(tmp_path), *overrides, samples=3)


def test_a_model_behind_an_api_is_asked_for_replies_beside_those_of_its_evaluation(tmp_path: Path, capsys):
    with ModelServer(lambda messages: "Action: 7").running() as server:
        api = {"kind": "openai", "name": "m", "base_url": f"{server.url}/v1", "prices": {"input": 1, "output": 1}}
        recorded = of_evaluation(tmp_path, "openai:m", api=api, data=LENGTHS)
        (result,) = ask(recorded, samples=3)
        assert result["kind"] == "replies" and [reply["action"] for reply in result["replies"]] == ["7"] * 3
        assert len(server.bodies) == len({body["seed"] for body in server.bodies}) == 3
        assert [message["role"] for message in server.bodies[0]["messages"]] == ["system", "user", "assistant", "user"]
    assert not (tmp_path / REPLY_LOG).exists()
    printed = capsys.readouterr().out
    assert printed.index("up to 3 replies") < printed.index("starting openai:m")


@pytest.mark.parametrize("question", [{"action": "9"}, {"oracle": True}, {"without_thought": True}])
def test_a_model_behind_an_api_continues_no_given_reply(tmp_path: Path, question: dict[str, object]):
    recorded = of_evaluation(tmp_path, "openai:m", api={"kind": "openai", "name": "m"}, data=LENGTHS)
    with pytest.raises(ConfigError, match=r"^model\.api\.kind='openai': a server does not continue given replies"):
        ask(recorded, samples=3, **question)


def test_the_command_prints_the_shares_and_the_file(tmp_path: Path):
    """The policy's module lies in the folder in which the command is started."""
    agent = {"name": "react", "options": {}, "context": {}}
    recorded = of_evaluation(tmp_path, "python:own_policy:reply", agent=agent)
    (tmp_path / "own_policy.py").write_text("def reply(messages):\n    return 'Action: 7'\n")
    (tmp_path / "start.py").write_text("from verl_agent.commands.cli import app\n\napp()\n")
    command = [sys.executable, "-P", str(tmp_path / "start.py"), "what-if", recorded.name, "--turn", "2"]
    ended = subprocess.run(
        [*command, "--samples", "4", "env.hosts.where=inline"], capture_output=True, text=True, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    assert "4 replies of python:own_policy:reply, temperature 0.5" in ended.stdout
    assert "1.000 [0.510, 1.000]" in ended.stdout
    assert f"stored: {results_file(recorded.file)}" in ended.stdout
