"""Test turns that a policy did not play: their tokens, their seeds, and replies whose beginning is given."""

import asyncio
from itertools import cycle

import pytest

from tests.support.fakes import ScriptedEngine, plain
from tests.support.tokens import AMPLE, REPLIES, Model, play_tokens
from verl_agent.agents.context import Context, LastObservations
from verl_agent.errors import OverlongPromptError
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.rollout.settings import TokenBudget
from verl_agent.types import Message, Reply, StopReason

PROMPT: list[Message] = [{"role": "system", "content": "Talk."}, {"role": "user", "content": "Begin."}]


@pytest.mark.parametrize("context", [None, LastObservations(turns=1)])
def test_a_model_continues_from_given_turns_with_their_tokens(smollm2: Model, context: Context | None):
    """Replies of whole tokens, since a record holds no ids."""
    texts = ["Action: look", "Thought: wood.\nAction: get 4 oak log", "Action: north"]
    ids = [
        [*smollm2.tokenizer.encode(text, add_special_tokens=False), smollm2.tokenizer.eos_token_id] for text in texts
    ]
    play = play_tokens(smollm2, ids, 3, context=context)
    engine = ScriptedEngine(smollm2.tokenizer, [ids[2]])
    policy, agent, episode = smollm2.policy(engine), plain(context), play.episode
    policy.seed = EpisodeSeed(1, "what_if", "talk", "1", step=0, sample=0)

    async def continue_episode() -> Reply:
        for turn in range(2):
            seen = agent.visible_messages(episode.messages[: 2 + 2 * turn], 2)
            await policy.add_given(seen, episode.turns[turn].reply)
        return await policy.reply(agent.visible_messages(episode.messages[:6], 2))

    assert asyncio.run(continue_episode()) == episode.turns[2].reply
    assert engine.prompts == [play.engine.prompts[2]]
    assert engine.sampling[0]["seed"] == policy.seed.at(2), "the seed of the third turn"


def test_a_given_reply_that_was_closed_is_closed_again(smollm2: Model):
    budget = TokenBudget(prompt=100, episode=5_000, turn=5, play_truncated_turns=True)
    play = play_tokens(smollm2, ["abcdefgh", "hi"], 2, budget)
    policy = smollm2.policy(ScriptedEngine(smollm2.tokenizer, ["hi"]), budget)

    async def continue_episode() -> None:
        await policy.add_given(PROMPT, play.episode.turns[0].reply)
        await policy.reply(play.episode.messages[:4])

    asyncio.run(continue_episode())
    text = smollm2.tokenizer.decode
    assert text(policy.engine.prompts[0]) == text(play.engine.prompts[1])


def test_a_given_turn_whose_prompt_is_too_long_is_an_error(smollm2: Model):
    policy = smollm2.policy(ScriptedEngine(smollm2.tokenizer, []), TokenBudget(prompt=5, episode=100, turn=10))
    with pytest.raises(OverlongPromptError):
        asyncio.run(policy.add_given(PROMPT, Reply("a")))


def test_the_model_writes_the_rest_of_a_reply_whose_beginning_is_given(smollm2: Model):
    engine = ScriptedEngine(smollm2.tokenizer, [" get 4 oak log"])
    policy = smollm2.policy(engine)
    reply = asyncio.run(policy.continue_reply(PROMPT, "Action:"))
    assert reply == Reply("Action: get 4 oak log", None, len(engine.written[0]))
    assert smollm2.tokenizer.decode(engine.prompts[0]) == smollm2.rendered(PROMPT) + "Action:"


@pytest.mark.parametrize(
    ("budget", "reply"),
    [
        (TokenBudget(100, 100, 4), Reply("Action: abc", StopReason.TURN_TOKENS, 4)),
        (TokenBudget(100, 100, 4, play_truncated_turns=True), Reply("Action: abc", None, 4, force_closed=True)),
        (TokenBudget(100, 5, 4), Reply("Action: ab", StopReason.EPISODE_TOKENS, 3)),
        (TokenBudget(100, 2, 4), Reply("", StopReason.EPISODE_TOKENS)),
    ],
)
def test_a_continued_reply_keeps_the_budgets(smollm2: Model, budget: TokenBudget, reply: Reply):
    assert len(smollm2.tokenizer.encode("Action:")) == 2
    policy = smollm2.policy(ScriptedEngine(smollm2.tokenizer, [" abcdefgh"]), budget)
    assert asyncio.run(policy.continue_reply(PROMPT, "Action:")) == reply


def test_the_given_turns_of_unusual_texts_are_those_of_the_template(smollm2: Model):
    """Every reply is one that a record may hold; the prompt of the next one is what the template renders."""
    for count in (1, 4):
        replies = list(REPLIES[:count])
        messages = [*PROMPT]
        engine = ScriptedEngine(smollm2.tokenizer, cycle(["end"]))
        policy = smollm2.policy(engine, AMPLE)

        async def continue_episode(replies=replies, messages=messages, policy=policy) -> None:
            for text in replies:
                await policy.add_given(list(messages), Reply(text))
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "heard"}]
            await policy.reply(messages)

        asyncio.run(continue_episode())
        shown = smollm2.tokenizer.decode(engine.prompts[-1])
        assert all(text in shown for text in replies)
