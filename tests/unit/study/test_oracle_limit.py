"""Test the turn limits that follow from an oracle."""

import pytest

from verl_agent.envs.registry import make_env
from verl_agent.errors import ConfigError
from verl_agent.study.oracle_limit import OracleLimit
from verl_agent.types import TaskItem


def test_the_limit_is_a_factor_times_the_oracles_turns_up_to_the_last_stage():
    env, limits = make_env("textcraft", {}), OracleLimit([5, 10, 16])
    items = env.tasks("test")
    found = {env.oracle_turns(item): limits.limit(1, item) for item in items}
    needed = {turns: min(-(-3 * turns // 2), 16) for turns in found if turns}
    assert found == needed and len(needed) > 3 and max(needed.values()) == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slack": 0.5}, r"horizon\.options\.slack=0\.5 is not allowed\. Allowed: a number from 1"),
        ({"slack": "x"}, r"horizon\.options\.slack='x' is not allowed"),
        ({"slack": float("nan")}, r"horizon\.options\.slack=nan is not allowed"),
        ({"env_options": {"misspelt": 1}}, r"horizon\.options\.env_options=\{'misspelt': 1\} of the oracle: "),
    ],
)
def test_options_that_are_not_allowed_raise_config_error_naming_the_key(options, message):
    with pytest.raises(ConfigError, match=message):
        OracleLimit([5], **options).limit(1, make_env("textcraft", {}).tasks("test")[0])


def test_a_task_without_an_oracle_raises_config_error():
    with pytest.raises(ConfigError, match=r"task 1 of 'webarena' has no oracle\. Choose another horizon\.schedule"):
        OracleLimit([5]).limit(1, TaskItem("webarena", "1"))
