"""Test limits of turns and tokens that contradict each other, against episodes that are counted turn by turn."""

import re

import pytest

from verl_agent.errors import ConfigError
from verl_agent.models.hf import load_tokenizer
from verl_agent.models.resolve import resolve_model
from verl_agent.rollout.limits import check_turns, template_tokens


def turns_played(reply: int, budget: int, around: int, limit: int) -> int:
    """Return the turns with a whole reply of an episode whose observations are empty."""
    used = turns = 0
    while turns < limit and used + reply <= budget:
        used, turns = used + reply + around, turns + 1
    return turns


@pytest.mark.parametrize("around", [1, 11])
@pytest.mark.parametrize("limit", [1, 2, 8, 30])
@pytest.mark.parametrize("budget", [1, 23, 32, 320, 349, 350, 4096])
@pytest.mark.parametrize("reply", [1, 32, 320])
def test_a_limit_is_refused_exactly_if_no_episode_reaches_it(reply, budget, limit, around):
    def check() -> str:
        return check_turns({"horizon.max_turns": limit}, ("episode.turn", reply), ("data.response", budget), around)

    shortest = turns_played(1, budget, around, limit)
    if shortest < limit:
        with pytest.raises(ConfigError, match=f"allows {limit} turns, and data.response={budget} at most {shortest}:"):
            check()
        return
    line, whole = check(), turns_played(reply, budget, around, limit)
    assert bool(line) == (whole < limit)
    if line:
        (named,) = re.findall(r"in turn (\d+) at the latest", line)
        assert int(named) == whole + 1 and f"episode.turn={reply}" in line and f"allows {limit} turns" in line


def test_each_limit_is_checked_and_named():
    with pytest.raises(ConfigError, match=r"^horizon\.eval_max_turns allows 50 turns"):
        check_turns({"horizon.max_turns": 2, "horizon.eval_max_turns": 50}, ("turn", 8), ("response", 64), 11)


def test_the_tokens_around_a_turn_are_those_that_a_longer_conversation_has():
    tokenizer = load_tokenizer(resolve_model("smollm2-135m"), "model.path")
    message = {"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}
    lengths = [
        len(tokenizer.apply_chat_template([*message * n, message[0]], tokenize=True)["input_ids"]) for n in (3, 5)
    ]
    assert template_tokens(tokenizer) == (lengths[1] - lengths[0]) // 2 - 2
