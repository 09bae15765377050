"""Tests of the token budgets of turns and episodes."""

import asyncio
import re
from dataclasses import replace
from itertools import cycle

import pytest

from tests.support.fakes import ScriptedEngine, split_ids
from tests.support.tokens import (
    REPLIES,
    PlayedTokens,
    check_tokens,
    play_tokens,
)
from verl_agent.agents.context import Summary
from verl_agent.messages import LimitedMessages
from verl_agent.rollout.chat_template import without_empty_thoughts
from verl_agent.rollout.settings import TokenBudget
from verl_agent.rollout.tokens import encode_reply
from verl_agent.types import Reply, StopReason


def written(play: PlayedTokens) -> list[Reply]:
    """Return the replies without the counts of their prompts, which are those of the engine's requests."""
    replies = [turn.reply for turn in play.episode.turns]
    assert [reply.prompt_tokens for reply in replies] == [len(ids) for ids in play.engine.prompts]
    return [replace(reply, prompt_tokens=0, cached_tokens=0) for reply in replies]


def test_reply_is_truncated_at_the_budget_of_a_turn(smollm2):
    play = play_tokens(smollm2, ["abcdefgh"], 3, TokenBudget(prompt=100, episode=100, turn=5))
    assert play.episode.stop is StopReason.TURN_TOKENS
    assert written(play)[0] == Reply("abcde", StopReason.TURN_TOKENS, 5)
    end = smollm2.tokenizer.eos_token_id
    assert play.engine.sampling == [{"temperature": 1.0, "stop_token_ids": [end], "max_tokens": 5}]
    check_tokens(play)


def test_reply_that_ends_exactly_at_its_budget_is_complete(smollm2):
    play = play_tokens(smollm2, ["abcd"], 1, TokenBudget(prompt=100, episode=5, turn=5))
    assert written(play)[0] == Reply("abcd", None, 5)


def test_later_reply_has_the_remaining_budget_of_the_episode(smollm2):
    script = ["ab", "abcdefgh"]
    unlimited = play_tokens(smollm2, script, 2)
    first_prompt, second_prompt = (len(prompt) for prompt in unlimited.engine.prompts)
    budget = TokenBudget(prompt=first_prompt, episode=second_prompt - first_prompt + 4, turn=9)
    play = play_tokens(smollm2, script, 2, budget)
    assert [sampling["max_tokens"] for sampling in play.engine.sampling] == [9, 4]
    assert written(play)[1] == Reply("abcd", StopReason.EPISODE_TOKENS, 4)
    assert len(play.segment.response_ids) == budget.episode
    check_tokens(play)


@pytest.mark.parametrize("play_truncated_turns", [False, True])
def test_reply_that_the_engine_cuts_before_its_budget_ends_the_episode(smollm2, play_truncated_turns):
    """SGLang cuts a reply when its context or cache is full. Such a reply was played as if the model had ended it."""
    first, second = (len(prompt) for prompt in play_tokens(smollm2, ["ab", "abcdefgh"], 2).engine.prompts)
    budget = TokenBudget(prompt=first, episode=1_000, turn=9, play_truncated_turns=play_truncated_turns)
    play = play_tokens(smollm2, ["ab", "abcdefgh", "no"], 3, budget, held=second + 4)
    assert written(play)[1] == Reply("abcd", StopReason.EPISODE_TOKENS, 4)
    assert (play.episode.stop, len(play.engine.prompts)) == (StopReason.EPISODE_TOKENS, 2)
    check_tokens(play)


def test_prompt_that_fills_the_context_of_the_engine_ends_the_episode(smollm2):
    prompts = play_tokens(smollm2, ["ab", "ab"], 2).engine.prompts
    play = play_tokens(smollm2, ["ab", "ab"], 2, held=len(prompts[1]))
    assert (play.episode.stop, len(play.episode.turns)) == (StopReason.EPISODE_TOKENS, 1)
    assert play.segment.response_ids == play.engine.written[0]


def test_observation_that_exhausts_the_budget_ends_the_episode_after_the_last_reply(smollm2):
    play = play_tokens(smollm2, ["ab", "never generated"], 2, TokenBudget(prompt=100, episode=6, turn=6))
    assert (play.episode.stop, len(play.episode.turns), len(play.engine.prompts)) == (StopReason.EPISODE_TOKENS, 1, 1)
    assert play.segment.response_ids == play.engine.written[0]
    check_tokens(play)


def test_segments_never_exceed_their_budgets(smollm2):
    for episode in range(1, 90, 8):
        for turn in {1, min(7, episode), episode}:
            for play_truncated_turns in (False, True):
                budget = TokenBudget(prompt=100, episode=episode, turn=turn, play_truncated_turns=play_truncated_turns)
                play = play_tokens(smollm2, cycle(REPLIES[::3]), 5, budget)
                assert len(play.segment.response_ids) <= episode
                assert max(len(ids) for ids in play.engine.written) <= turn
                assert play.segment.response_mask[-1] == 1


def test_prompt_above_its_budget_ends_the_episode_before_its_first_turn(smollm2):
    play = play_tokens(smollm2, ["never generated"], 1, TokenBudget(prompt=5, episode=100, turn=10))
    assert (play.episode.stop, play.episode.turns, play.engine.prompts) == (StopReason.OVERLONG_PROMPT, [], [])
    assert re.fullmatch(r"the prompt has \d+ tokens, but data\.max_prompt_length=5\. Raise it, .*", play.episode.error)
    assert len(play.episode.messages) == 2, "the record shows what is too long"


def test_truncated_reply_is_closed_and_played_if_allowed(model):
    """The model did not write the end-of-turn token, so its mask is 0; the engine reads it as usual."""
    budget = TokenBudget(prompt=100, episode=5_000, turn=5, play_truncated_turns=True)
    play = play_tokens(model, ["abcdefgh", "hi"], 2, budget)
    assert written(play) == [
        Reply("abcde", None, 5, force_closed=True),
        Reply("hi", None, 3),
    ]
    assert play.episode.stop is StopReason.TERMINATED
    check_tokens(play)
    end = model.tokenizer.eos_token_id
    assert (play.segment.response_ids[5], play.segment.response_mask[:6]) == (end, [1, 1, 1, 1, 1, 0])
    read, rendered = model.tokenizer.decode(play.engine.prompts[1]), model.rendered(play.episode.messages[:-2])
    assert without_empty_thoughts(read) == without_empty_thoughts(rendered)


def test_truncated_reply_that_exhausts_the_episodes_budget_ends_it(smollm2):
    budget = TokenBudget(prompt=100, episode=5, turn=5, play_truncated_turns=True)
    play = play_tokens(smollm2, ["abcdefgh"], 3, budget)
    assert (play.episode.stop, len(play.episode.turns)) == (StopReason.EPISODE_TOKENS, 1)
    assert len(play.segment.response_ids) == 5


def test_reply_that_stops_on_another_token_is_closed_with_mask_zero(smollm2):
    """Engines stop at every id of the model's generation config, such as `<|endoftext|>`."""
    stray = smollm2.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    play = play_tokens(smollm2, [[*split_ids(smollm2.tokenizer, "ab"), stray], "c"], 2)
    assert written(play)[0] == Reply("ab", None, 3)
    check_tokens(play)
    assert (play.segment.response_ids[3], play.segment.response_mask[:4]) == (
        smollm2.tokenizer.eos_token_id,
        [1, 1, 1, 0],
    )


def test_engine_without_tokens_raises_runtime_error(smollm2):
    with pytest.raises(RuntimeError, match="the engine returned no tokens"):
        play_tokens(smollm2, [[]], 1)


def test_episode_with_an_edited_context_may_exceed_the_budget_of_one_segment(smollm2):
    """Removed turns free tokens: a window of one turn suffices for an episode of ten."""
    script = [encode_reply(smollm2.tokenizer, "word " * 18, smollm2.tokenizer.eos_token_id)] * 10
    budget = TokenBudget(prompt=200, episode=200, turn=25)
    assert play_tokens(smollm2, script, 10, budget).episode.stop is StopReason.EPISODE_TOKENS
    window = play_tokens(smollm2, script, 10, budget, context=Summary(turns=1))
    assert len(window.episode.turns) == 10
    assert all(len(segment.prompt_ids + segment.response_ids) <= 400 for segment in window.segments)


def test_segment_whose_prompt_exceeds_the_budget_of_prompts_has_the_rest_of_the_row(smollm2):
    context = Summary(turns=1)
    first = len(play_tokens(smollm2, ["a"], 1, context=context).engine.prompts[0])
    script = [encode_reply(smollm2.tokenizer, "word " * 24, smollm2.tokenizer.eos_token_id)] * 10
    play = play_tokens(smollm2, script, 10, TokenBudget(prompt=first, episode=80, turn=30), context=context)
    assert play.episode.stop is StopReason.EPISODE_TOKENS
    last = play.segments[-1]
    assert len(last.prompt_ids) > first
    assert len(last.prompt_ids + last.response_ids) == first + 80


@pytest.mark.parametrize("room", [0, 5], ids=["at the budget", "below it"])
def test_a_stop_text_ends_a_reply_as_it_is_also_with_the_last_token_of_the_budget(smollm2, room):
    ids = split_ids(smollm2.tokenizer, "abSTOP")
    engine = ScriptedEngine(smollm2.tokenizer, ["abSTOPcd"])
    policy = smollm2.policy(engine, TokenBudget(prompt=100, episode=100, turn=len(ids) + room))
    asked = LimitedMessages.of([{"role": "user", "content": "Begin."}], {"stop": ["STOP"]})
    reply = asyncio.run(policy.reply(asked))
    assert (reply.text, reply.tokens, reply.truncated_by, reply.force_closed) == ("abSTOP", len(ids), None, False)
