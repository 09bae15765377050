"""Tests that the tokens that are trained on are the tokens that were sampled, for every tested chat template."""

import asyncio
import re
from dataclasses import fields
from itertools import cycle, islice
from typing import Any

import pytest
from verl.workers.rollout.replica import TokenOutput

from tests.support.fakes import EngineOutput, ScriptedEngine, plain
from tests.support.tokens import (
    REPLIES,
    check_tokens,
    play_tokens,
)
from verl_agent.agents.context import LastObservations, Summary
from verl_agent.rollout.chat_template import choose_builder, without_empty_thoughts
from verl_agent.rollout.settings import TokenBudget
from verl_agent.rollout.tokens import EpisodeTokens, contract, encode_reply, expand, render_conversation, render_episode
from verl_agent.training.agent_loop import written_versions


@pytest.mark.parametrize("turns", [1, 2, 3, 7, 12])
def test_every_prompt_continues_the_ids_that_the_engine_returned(model, turns):
    for first in range(0, len(REPLIES), 4):
        check_tokens(play_tokens(model, islice(cycle(REPLIES), first, None), turns))


def test_replies_keep_the_ids_of_the_engine(model):
    """The ids differ from those that the tokenizer would choose for the same text."""
    play = play_tokens(model, REPLIES, len(REPLIES))
    unusual = [
        ids
        for ids, text in zip(play.engine.written, REPLIES, strict=True)
        if ids != encode_reply(model.tokenizer, text, ids[-1])
    ]
    assert len(unusual) >= 8
    assert [turn.reply.text for turn in play.episode.turns] == list(REPLIES)
    model_wrote = [
        token for token, own in zip(play.segment.response_ids, play.segment.response_mask, strict=True) if own
    ]
    assert model_wrote == [token for ids in play.engine.written for token in ids]


@pytest.mark.parametrize("turns", [1, 2, 12])
def test_prompts_equal_the_rendering_of_the_template(model, turns):
    play = play_tokens(model, REPLIES, turns)
    conversation = play.episode.messages[:-2]  # without the last reply and its observation
    read, rendered = model.tokenizer.decode(play.engine.prompts[-1]), model.rendered(conversation)
    if model.options:  # Qwen3 drops the empty thought of earlier replies; the token sequence keeps it
        assert read.count("<think>") == turns
        read, rendered = without_empty_thoughts(read), without_empty_thoughts(rendered)
    assert read == rendered


def test_prompts_keep_earlier_thoughts_that_the_template_drops(thinker):
    """Qwen3's template drops earlier thoughts. A prompt that continues the sampled ids keeps them, by design.

    All other text equals the rendering of the template.
    """
    script = [f"<think>\nIt is {word}.\n</think>\n\nAction: {word}" for word in ("one", "木", "three")]
    play = play_tokens(thinker, script, len(script))
    check_tokens(play)
    read = thinker.tokenizer.decode(play.engine.prompts[-1])
    assert [thought in read for thought in ("It is one.", "It is 木.")] == [True, True]
    rendered = thinker.rendered(play.episode.messages[:-2])
    assert "<think>" not in rendered
    assert re.sub(r"<think>.*?</think>\n*", "", read, flags=re.DOTALL) == rendered


def test_prompts_of_replies_without_thoughts_equal_the_template_with_thinking_on(thinker):
    play = play_tokens(thinker, ["Action: one", "Action: two"], 2)
    check_tokens(play)
    assert thinker.tokenizer.decode(play.engine.prompts[-1]) == thinker.rendered(play.episode.messages[:-2])


def test_rendered_conversation_has_the_tokens_of_the_played_episode(model):
    """SFT and RL train on the same ids if the engine wrote the ids that the tokenizer chooses."""
    texts = [text for text in REPLIES if text.strip()]
    script = [encode_reply(model.tokenizer, text, model.tokenizer.eos_token_id) for text in texts]
    play = play_tokens(model, script, len(script))
    builder = choose_builder(model.tokenizer, model.model_type, model.options)
    (rendered,) = render_conversation(builder, model.tokenizer, play.episode.messages).segments()
    assert (rendered.prompt_ids, rendered.response_ids, rendered.response_mask) == (
        play.segment.prompt_ids,
        play.segment.response_ids,
        play.segment.response_mask,
    )


def test_segment_without_log_probs_of_the_engine_has_none(smollm2):
    assert play_tokens(smollm2, REPLIES, 2, log_probs=False).segment.response_log_probs is None


def test_episode_without_replies_has_no_segment(smollm2):
    assert smollm2.policy(ScriptedEngine(smollm2.tokenizer, [])).tokens.segments() == []


def test_every_token_keeps_the_version_of_the_weights_that_sampled_it(smollm2):
    play = play_tokens(smollm2, REPLIES, 3, steps=[4, None, 5])
    by_reply = [len(ids) for ids in play.engine.written]
    sampled = [version for version, tokens in zip((4, 0, 5), by_reply, strict=True) for _ in range(tokens)]
    assert play.policy.versions == written_versions(play.segment) == sampled
    others = zip(play.segment.response_versions, play.segment.response_mask, strict=True)
    assert {version for version, mask in others if not mask} == {0}


def test_a_reply_of_two_versions_keeps_both(smollm2):
    engine = ScriptedEngine(smollm2.tokenizer, ["Action: one"])
    policy = smollm2.policy(engine)
    prompt = [{"role": "user", "content": "Begin."}]

    async def reply() -> None:
        output = await engine.generate("r", prompt_ids=[1], sampling_params={"max_tokens": 99})
        output.extra_fields.update({"versions": [(3, 2), (4, len(output.token_ids) - 2)], "paused_s": 1.5})
        policy.tokens.add_messages(prompt)
        assert policy._to_reply(output, 99, {}).paused_s == 1.5

    asyncio.run(reply())
    (segment,) = policy.tokens.segments()
    assert contract(written_versions(segment)) == [[3, 2], [4, len(segment.response_ids) - 2]]
    assert contract(expand([(3, 2), (4, 1)])) == [[3, 2], [4, 1]]


class Rambling:
    """Engine that writes until an id that its folder or a request names as the end of a reply."""

    def __init__(self, ids: list[int], of_folder: int) -> None:
        self.ids, self.of_folder = ids, of_folder

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> EngineOutput:
        ends = {self.of_folder, *(sampling_params.get("stop_token_ids") or ())}
        size = next((at for at, token in enumerate(self.ids, 1) if token in ends), len(self.ids))
        return EngineOutput(self.ids[:size], None)


def test_a_reply_ends_with_the_tokenizers_end_of_turn_where_the_models_folder_has_another(smollm2):
    """As with a base model and the tokenizer of its chat model."""
    tokenizer = smollm2.tokenizer
    more = "<|im_start|>user\nIs it two?<|im_end|>\n<|endoftext|>"
    ids = tokenizer.encode(f"It is one.<|im_end|>\n{more}", add_special_tokens=False)
    engine = Rambling(ids, of_folder=tokenizer.convert_tokens_to_ids("<|endoftext|>"))
    policy = smollm2.policy(engine)
    reply = asyncio.run(policy.reply([{"role": "user", "content": "Begin."}]))
    (segment,) = policy.tokens.segments()
    assert reply.text == "It is one."
    assert segment.response_ids == ids[: ids.index(tokenizer.eos_token_id) + 1]
    assert segment.response_mask == [1] * len(segment.response_ids)


def test_a_segment_has_the_experts_that_its_last_reply_came_with(smollm2):
    """They are those of all tokens that the engine read for it, so the earlier ones are part of them."""
    tokens = smollm2.policy(ScriptedEngine(smollm2.tokenizer, [])).tokens
    messages = [{"role": "user", "content": "Begin."}]
    for text in ("one", "two"):
        tokens.add_messages(messages)
        tokens.add_reply(text, encode_reply(smollm2.tokenizer, text, tokens.end_of_turn), experts=f"until {text}")
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    tokens.add_messages(messages[-1:])
    tokens.add_reply("three", encode_reply(smollm2.tokenizer, "three", tokens.end_of_turn))
    assert [segment.routed_experts for segment in tokens.segments()] == ["until two", None]


def test_all_turns_of_an_episode_share_one_request_id(smollm2):
    plays = [play_tokens(smollm2, REPLIES, 3) for _ in range(2)]
    assert [len(set(play.engine.requests)) for play in plays] == [1, 1]
    assert plays[0].engine.requests[0] != plays[1].engine.requests[0]


def test_output_of_the_scripted_engine_has_fields_of_verls_output_only():
    assert {field.name for field in fields(EngineOutput)} <= set(TokenOutput.model_fields)


CONTEXTS = [
    LastObservations(turns=1),
    LastObservations(turns=2, stride=3),
    Summary(turns=1),
    Summary(turns=3, stride=2),
]


@pytest.mark.parametrize("context", CONTEXTS, ids=repr)
def test_segments_of_an_edited_context_train_each_token_after_its_sampled_prefix(model, context):
    script = [text.replace("Action", "Summary: so far\nAction") for text in REPLIES if text.strip()]
    play = play_tokens(model, script, len(script), context=context)
    trained = [
        (segment.prompt_ids + segment.response_ids[:index], token)
        for segment in play.segments
        for index, (token, mask) in enumerate(zip(segment.response_ids, segment.response_mask, strict=True))
        if mask
    ]
    sampled = [
        ([*prompt, *ids[:index]], token)
        for prompt, ids in zip(play.engine.prompts, play.engine.written, strict=True)
        for index, token in enumerate(ids)
    ]
    assert trained == sampled
    assert [p for s in play.segments for p, m in zip(s.response_log_probs, s.response_mask, strict=True) if m] == [
        one for reply in play.engine.log_probs for one in reply
    ]
    assert len(play.segments) == context.sample_count([True] * len(script)) > 1
    assert all(segment.response_mask[-1] == 1 for segment in play.segments)


def test_thoughts_are_trained_on_although_later_segments_drop_them(thinker):
    """Qwen3's template drops the thoughts of earlier replies from the prompt of a later segment."""
    script = [f"<think>\nthought {turn}\n</think>\n\nAction: {turn}" for turn in range(4)]
    play = play_tokens(thinker, script, 4, context=Summary(turns=1))
    written = [token for reply in play.engine.written for token in reply]
    assert [t for s in play.segments for t, m in zip(s.response_ids, s.response_mask, strict=True) if m] == written
    assert "thought" not in thinker.tokenizer.decode(play.segments[-1].prompt_ids)


@pytest.mark.parametrize("context", CONTEXTS, ids=repr)
def test_prompts_of_an_edited_context_equal_the_rendering_of_the_template(model, context):
    script = [text for text in REPLIES if text.strip()]
    play = play_tokens(model, script, len(script), context=context)
    for turn, prompt in enumerate(play.engine.prompts):
        visible = context.visible_messages(play.episode.messages[: 2 + 2 * turn], 2)
        rendered = without_empty_thoughts(model.rendered(visible))
        assert without_empty_thoughts(model.tokenizer.decode(prompt)) == rendered


def test_rendered_episode_with_an_edited_context_has_the_tokens_of_the_played_one(model):
    texts = [text for text in REPLIES if text.strip()]
    script = [encode_reply(model.tokenizer, text, model.tokenizer.eos_token_id) for text in texts]
    play = play_tokens(model, script, len(script), context=LastObservations(turns=2))
    agent = plain(LastObservations(turns=2))
    tokens = EpisodeTokens(
        choose_builder(model.tokenizer, model.model_type, model.options), play.policy.tokens.end_of_turn
    )
    rendered = render_episode(tokens, model.tokenizer, agent, play.episode)
    assert [(s.prompt_ids, s.response_ids, s.response_mask) for s in rendered] == [
        (s.prompt_ids, s.response_ids, s.response_mask) for s in play.segments
    ]


def test_rendered_episode_with_truncated_replies_has_the_mask_of_the_played_one(smollm2):
    """RL and SFT must agree on the tokens that the model wrote, without the ends of truncated replies."""
    texts = ["abcdefgh", "hi", "abcdefgh"]
    script = [encode_reply(smollm2.tokenizer, text, smollm2.tokenizer.eos_token_id) for text in texts]
    for play_truncated_turns in (True, False):
        budget = TokenBudget(prompt=100, episode=5_000, turn=2, play_truncated_turns=play_truncated_turns)
        play = play_tokens(smollm2, script, len(script), budget)
        agent = plain()
        tokens = EpisodeTokens(play.policy.tokens.builder, play.policy.tokens.end_of_turn)
        (rendered,) = render_episode(tokens, smollm2.tokenizer, agent, play.episode)
        assert (rendered.response_ids, rendered.response_mask) == (
            play.segment.response_ids,
            play.segment.response_mask,
        )


def test_reply_that_another_author_wrote_is_part_of_the_next_prompt_and_not_trained_on(smollm2):
    builder = choose_builder(smollm2.tokenizer, smollm2.model_type, smollm2.options)
    tokens = EpisodeTokens(builder, smollm2.tokenizer.eos_token_id)
    said = [{"role": "user", "content": "Begin."}]
    tokens.add_messages(said)
    tokens.add_reply("mine", encode_reply(smollm2.tokenizer, "mine", tokens.end_of_turn))
    edited = [*said, {"role": "assistant", "content": "theirs"}, {"role": "user", "content": "Heard."}]
    taken = [*edited, {"role": "assistant", "content": "again"}, {"role": "user", "content": "Heard."}]
    for messages in (edited, taken):
        tokens.add_messages(messages)
        assert smollm2.tokenizer.decode(tokens.ids) == smollm2.rendered(messages)
    tokens.add_reply("mine", encode_reply(smollm2.tokenizer, "mine", tokens.end_of_turn))
    assert [smollm2.tokenizer.decode(part.response_ids) for part in tokens.segments()] == ["mine<|im_end|>"] * 2
