"""Test rubrics and the settings of a judge that are refused by name."""

import json

import pytest

from tests.support.judged import CRITERIA
from verl_agent.envs.judge.settings import JudgeSettings
from verl_agent.errors import ConfigError
from verl_agent.sections import section

API = {"name": "m", "base_url": "http://127.0.0.1:1/v1"}


def judge(**values) -> JudgeSettings:
    return section("judge", JudgeSettings, {"rubric": {"question": "Solved?"}, "api": API, **values})


def test_a_rubric_is_a_file_or_its_content_and_the_content_identifies_it(tmp_path):
    (tmp_path / "rubric.yaml").write_text("question: Solved?\n")
    (tmp_path / "rubric.json").write_text(json.dumps({"criteria": CRITERIA}))
    of_file, inline = judge(rubric=str(tmp_path / "rubric.yaml")), judge()
    assert of_file.identity() == inline.identity() != judge(rubric={"question": "Polite?"}).identity()
    assert [one.name for one in judge(rubric=str(tmp_path / "rubric.json")).criteria()] == ["goal", "care"]
    assert section("judge", JudgeSettings, {}).identity() == {}


@pytest.mark.parametrize(
    ("rubric", "message"),
    [
        ({"criteria": [{**one, "weight": 0.6} for one in CRITERIA]}, r"the weights sum to 1\.2\. Let them sum to 1"),
        ({"criteria": [CRITERIA[0], CRITERIA[0]]}, "several criteria with the name goal"),
        ({"criteria": []}, "criteria must be a list"),
        ({"criteria": [{"name": "goal"}]}, r"criteria\[0\]\.description is missing"),
        ({"criteria": [{**CRITERIA[0], "weight": "much"}]}, r"criteria\[0\]\.weight='much' is not allowed"),
        ({"criteria": [{**CRITERIA[0], "name": "a\nb"}]}, r"criteria\[0\]\.name='a\\nb' .*Allowed: .* matches"),
        ({"question": ""}, "question.description=''"),
        ({"question": "Solved?", "criteria": CRITERIA}, "is no rubric"),
        ("/no/such/file.yaml", "cannot be read"),
    ],
)
def test_a_rubric_that_cannot_be_meant_is_refused_by_name(rubric, message):
    with pytest.raises(ConfigError, match=message):
        judge(rubric=rubric)


def test_a_rubric_with_the_same_key_twice_is_refused(tmp_path):
    (tmp_path / "rubric.yaml").write_text("question: Solved?\nquestion: Polite?\n")
    with pytest.raises(ConfigError, match=r"the key 'question' occurs twice.*line 2"):
        judge(rubric=str(tmp_path / "rubric.yaml"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"api": {}}, r"judge\.api\.name is missing"),
        ({"api": {**API, "base_url": "ftp://x"}}, r"judge\.api\.base_url='ftp://x' is not allowed"),
        ({"api": {**API, "options": {"temperature": 1}}}, r"judge\.api\.options\.temperature is not allowed"),
        ({"api": {**API, "prices": {"input": 1.0}}}, r"judge\.api\.prices has input"),
        ({"weight": 0.0}, r"judge\.weight=0 is not allowed"),
        ({"mode": "replace", "weight": -1.0}, r"judge\.weight=-1 is not allowed\. Allowed: a number above 0"),
        ({"when": "often"}, r"judge\.when='often'"),
        ({"success_score": 1.5}, r"judge\.success_score=1\.5"),
    ],
)
def test_a_setting_that_is_not_allowed_is_refused_by_name(values, message):
    with pytest.raises(ConfigError, match=message):
        judge(**values)


def test_a_start_needs_the_key_and_the_prices_that_the_settings_name():
    with pytest.raises(ConfigError, match=r"NO_SUCH_KEY .* is not set.*judge\.api\.key_env"):
        judge(api={**API, "key_env": "NO_SUCH_KEY"}).check()
    with pytest.raises(ConfigError, match=r"judge\.max_usd=1 needs the prices.*judge\.api\.prices\.input"):
        judge(max_usd=1.0).check()
    judge(max_usd=1.0, api={**API, "prices": {"input": 1.0, "output": 2.0}}).check()


def test_each_judge_of_a_run_needs_a_request():
    judge(max_requests=6).check(judges=6)
    with pytest.raises(ConfigError, match=r"^judge\.max_requests=5 is not allowed.* Allowed: 6 or more, or null"):
        judge(max_requests=5).check(judges=6)
