"""The tokens that are trained on are the tokens that were sampled, for every chat template we name."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import cycle, islice
from pathlib import Path
from typing import Any, ClassVar

import pytest
from transformers import AutoTokenizer
from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder, QwenContinuousTokenBuilder
from verl.workers.rollout.replica import TokenOutput

from tests.support.fakes import ITEM, EngineOutput, ScriptedEngine, Talk, plain, split_ids
from verl_agent.agents.context import Context, LastObservations, Summary
from verl_agent.agents.functions import FunctionCalls
from verl_agent.envs.action_format import LineFormat
from verl_agent.errors import ConfigError
from verl_agent.models.resolve import prepare_smollm2
from verl_agent.rollout.chat_template import check_tools, choose_builder, without_empty_thoughts
from verl_agent.rollout.episode import EpisodeLimits, play
from verl_agent.rollout.policy import EnginePolicy, TokenBudget
from verl_agent.rollout.tokens import EpisodeTokens, Segment, encode_reply, render_conversation, render_episode
from verl_agent.types import Episode, Message, Reply, StepResult, StopReason

TEMPLATES = Path(__file__).parents[1] / "data/templates"
AMPLE = TokenBudget(prompt=1_000, episode=100_000, turn=10_000)

REPLIES = (
    "Action: get 4 oak log",
    "",
    "Thought: the café's ½ 木 🪵🏽 — naïve.\nAction: craft",
    "Action: look\n",
    "Action: look   ",
    "\n\nAction: north\n\n",
    " ",
    "Again and again. " * 60,
    "```\nAction: `x`\n```",
    "\tAction:\t1",
    "Action: 1234567890",
    "你好",
)
OBSERVATIONS = ("Got 4 oak log", "", "Error:\n  no “木”\n", "x" * 500, " ", "🪵", "\n")


@dataclass(frozen=True)
class Model:
    """A tokenizer with a chat template.

    Attributes:
        tokenizer: SmolLM2's, which has ChatML's special tokens too.
        options: `chat_template_kwargs`.
        model_type: of the models that come with this template.
    """

    tokenizer: Any
    options: dict[str, Any]
    model_type: str

    def rendered(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        return self.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=add_generation_prompt, **self.options
        )

    def policy(self, engine: ScriptedEngine, budget: TokenBudget = AMPLE) -> EnginePolicy:
        end = self.tokenizer.eos_token_id
        tokens = EpisodeTokens(choose_builder(self.tokenizer, self.model_type, self.options), end)
        return EnginePolicy(engine, self.tokenizer, tokens, budget, {"temperature": 1.0}, frozenset({end}))


def load(template: str = "", model_type: str = "llama", **options) -> Model:
    tokenizer = AutoTokenizer.from_pretrained(prepare_smollm2())
    if template:
        tokenizer.chat_template = template
    return Model(tokenizer, options, model_type)


@pytest.fixture(scope="module")
def smollm2() -> Model:
    return load()


@pytest.fixture(scope="module", params=["smollm2", "qwen2.5", "qwen3 without thinking"])
def model(request) -> Model:
    match request.param:
        case "smollm2":
            return load()
        case "qwen2.5":
            return load((TEMPLATES / "qwen2.5.jinja").read_text(), "qwen2")
        case _:
            return load((TEMPLATES / "qwen3.jinja").read_text(), "qwen3", enable_thinking=False)


@pytest.fixture(scope="module")
def thinker() -> Model:
    return load((TEMPLATES / "qwen3.jinja").read_text(), "qwen3", enable_thinking=True)


class Chatter(Talk):
    """Says all kinds of things, and ends with one of them."""

    made: ClassVar[list[Talk]] = []

    async def step(self, action: str) -> StepResult:
        step = await super().step(action)
        return StepResult(OBSERVATIONS[self.heard % len(OBSERVATIONS)], step.reward, step.terminated)


@dataclass(frozen=True)
class Played:
    """An episode, and what engine and trainer saw of it."""

    episode: Episode
    engine: ScriptedEngine
    policy: EnginePolicy
    segments: list[Segment]

    @property
    def segment(self) -> Segment:
        assert len(self.segments) == 1
        return self.segments[0]


def played(
    model: Model, script, turns: int, budget: TokenBudget = AMPLE, context: Context | None = None, **engine
) -> Played:
    scripted = ScriptedEngine(model.tokenizer, script, **engine)
    policy = model.policy(scripted, budget)
    episode = asyncio.run(play(ITEM, Chatter(turns=turns), plain(context), policy, EpisodeLimits(turns)))
    return Played(episode, scripted, policy, policy.tokens.segments())


def check_tokens(play: Played) -> None:
    """What must hold for every episode and every template: see the assertions."""
    prompts, written, log_probs = play.engine.prompts, play.engine.written, play.engine.log_probs
    mask: list[int] = []
    aligned: list[float] = []
    for turn, prompt in enumerate(prompts):
        if turn:
            before = prompts[turn - 1] + written[turn - 1]
            assert prompt[: len(before)] == before  # what was said stays, id by id
            gap = len(prompt) - len(before)
            mask += [0] * gap
            aligned += [0.0] * gap
        mask += [1] * len(written[turn])
        aligned += log_probs[turn]
    assert play.segment is not None
    assert play.segment.prompt_ids == prompts[0]
    assert play.segment.prompt_ids + play.segment.response_ids == prompts[-1] + written[-1]
    assert play.segment.response_mask == mask
    assert play.segment.response_mask[-1] == 1  # where verl puts the reward
    assert play.segment.response_log_probs == aligned


@pytest.mark.parametrize("turns", [1, 2, 3, 7, 12])
def test_every_prompt_continues_the_ids_that_the_engine_returned(model, turns):
    for first in range(0, len(REPLIES), 4):
        check_tokens(played(model, islice(cycle(REPLIES), first, None), turns))


def test_nothing_is_decoded_and_encoded_again(model):
    """The engine's ids are none that the tokenizer would choose, and they stand in the sample all the same."""
    play = played(model, REPLIES, len(REPLIES))
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
def test_the_engine_reads_what_the_template_renders(model, turns):
    play = played(model, REPLIES, turns)
    conversation = play.episode.messages[:-2]  # without the last reply and what it was answered
    read, rendered = model.tokenizer.decode(play.engine.prompts[-1]), model.rendered(conversation)
    if (
        model.options
    ):  # Qwen3 drops the empty thought before a reply once the reply is history; ours stays as it was read
        assert read.count("<think>") == turns
        read, rendered = without_empty_thoughts(read), without_empty_thoughts(rendered)
    assert read == rendered


def test_a_thought_stays_in_what_the_engine_reads_though_the_template_drops_it(thinker):
    """Qwen3 strips thoughts from history. A prompt that continues the sampled ids cannot, so by design they stay.

    Equal are the ids from turn to turn, and all text but the thoughts.
    """
    script = [f"<think>\nIt is {word}.\n</think>\n\nAction: {word}" for word in ("one", "木", "three")]
    play = played(thinker, script, len(script))
    check_tokens(play)
    read = thinker.tokenizer.decode(play.engine.prompts[-1])
    assert [thought in read for thought in ("It is one.", "It is 木.")] == [True, True]
    rendered = thinker.rendered(play.episode.messages[:-2])
    assert "<think>" not in rendered
    assert re.sub(r"<think>.*?</think>\n*", "", read, flags=re.DOTALL) == rendered


def test_replies_without_a_thought_are_rendered_alike_with_thinking_on(thinker):
    play = played(thinker, ["Action: one", "Action: two"], 2)
    check_tokens(play)
    assert thinker.tokenizer.decode(play.engine.prompts[-1]) == thinker.rendered(play.episode.messages[:-2])


def test_a_demonstration_is_rendered_as_an_episode_is_played(model):
    """Supervised and reinforcement learning see the same ids where the reply is written in the same ids."""
    texts = [text for text in REPLIES if text.strip()]
    script = [encode_reply(model.tokenizer, text, model.tokenizer.eos_token_id) for text in texts]
    play = played(model, script, len(script))
    builder = choose_builder(model.tokenizer, model.model_type, model.options)
    (shown,) = render_conversation(builder, model.tokenizer, play.episode.messages).segments()
    assert (shown.prompt_ids, shown.response_ids, shown.response_mask) == (
        play.segment.prompt_ids,
        play.segment.response_ids,
        play.segment.response_mask,
    )


def test_an_engine_without_log_probs_gives_a_sample_without(smollm2):
    assert played(smollm2, REPLIES, 2, log_probs=False).segment.response_log_probs is None


def test_an_episode_in_which_nothing_was_written_is_no_sample(smollm2):
    assert smollm2.policy(ScriptedEngine(smollm2.tokenizer, [])).tokens.segments() == []


def test_the_versions_of_the_weights_are_kept(smollm2):
    assert played(smollm2, REPLIES, 3, steps=[4, None, 5]).policy.steps == [4, 0, 5]


def test_a_session_is_one_request_so_that_the_engine_keeps_its_prefix(smollm2):
    plays = [played(smollm2, REPLIES, 3) for _ in range(2)]
    assert [len(set(play.engine.requests)) for play in plays] == [1, 1]
    assert plays[0].engine.requests[0] != plays[1].engine.requests[0]


def test_the_fake_engine_answers_with_fields_that_verl_has():
    assert {field.name for field in fields(EngineOutput)} <= set(TokenOutput.model_fields)


# Budgets


def test_a_reply_is_cut_at_the_budget_of_a_turn(smollm2):
    play = played(smollm2, ["abcdefgh"], 3, TokenBudget(prompt=100, episode=100, turn=5))
    assert play.episode.stop is StopReason.TURN_TOKENS
    assert play.episode.turns[0].reply == Reply("abcde", StopReason.TURN_TOKENS, 5)
    assert play.engine.sampling == [{"temperature": 1.0, "max_tokens": 5}]
    check_tokens(play)


def test_a_reply_that_ends_with_its_budget_is_whole(smollm2):
    play = played(smollm2, ["abcd"], 1, TokenBudget(prompt=100, episode=5, turn=5))
    assert play.episode.turns[0].reply == Reply("abcd", None, 5)


def test_a_later_reply_gets_what_the_episode_has_left(smollm2):
    script = ["ab", "abcdefgh"]
    whole = played(smollm2, script, 2)
    first_prompt, second_prompt = (len(prompt) for prompt in whole.engine.prompts)
    budget = TokenBudget(prompt=first_prompt, episode=second_prompt - first_prompt + 4, turn=9)
    play = played(smollm2, script, 2, budget)
    assert [sampling["max_tokens"] for sampling in play.engine.sampling] == [9, 4]
    assert play.episode.turns[1].reply == Reply("abcd", StopReason.EPISODE_TOKENS, 4)
    assert len(play.segment.response_ids) == budget.episode
    check_tokens(play)


def test_an_observation_that_takes_the_rest_ends_the_episode_on_the_last_reply(smollm2):
    play = played(smollm2, ["ab", "never asked"], 2, TokenBudget(prompt=100, episode=6, turn=6))
    assert (play.episode.stop, len(play.episode.turns), len(play.engine.prompts)) == (StopReason.EPISODE_TOKENS, 1, 1)
    assert play.segment.response_ids == play.engine.written[0]
    check_tokens(play)


def test_no_sample_exceeds_its_budgets_whatever_they_are(smollm2):
    """The reference cut episodes after the fact (fault 6)."""
    for episode in range(1, 90, 8):
        for turn in {1, min(7, episode), episode}:
            for play_truncated_turns in (False, True):
                budget = TokenBudget(prompt=100, episode=episode, turn=turn, play_truncated_turns=play_truncated_turns)
                play = played(smollm2, cycle(REPLIES[::3]), 5, budget)
                assert len(play.segment.response_ids) <= episode
                assert max(len(ids) for ids in play.engine.written) <= turn
                assert play.segment.response_mask[-1] == 1


def test_a_prompt_that_is_too_long_stops_the_run_and_names_the_setting(smollm2):
    with pytest.raises(ConfigError, match=r"a prompt has \d+ tokens, data\.max_prompt_length allows 5\."):
        played(smollm2, ["a"], 1, TokenBudget(prompt=5, episode=100, turn=10))


def test_a_cut_turn_may_be_closed_and_played(model):
    """The end-of-turn token is ours, so it is not trained on; the engine reads it as any other."""
    budget = TokenBudget(prompt=100, episode=5_000, turn=5, play_truncated_turns=True)
    play = played(model, ["abcdefgh", "hi"], 2, budget)
    assert [turn.reply for turn in play.episode.turns] == [
        Reply("abcde", None, 5, force_closed=True),
        Reply("hi", None, 3),
    ]
    assert play.episode.stop is StopReason.TERMINATED
    check_tokens(play)
    end = model.tokenizer.eos_token_id
    assert (play.segment.response_ids[5], play.segment.response_mask[:6]) == (end, [1, 1, 1, 1, 1, 0])
    read, rendered = model.tokenizer.decode(play.engine.prompts[1]), model.rendered(play.episode.messages[:-2])
    assert without_empty_thoughts(read) == without_empty_thoughts(rendered)


def test_a_cut_turn_that_fills_the_episode_is_its_last(smollm2):
    budget = TokenBudget(prompt=100, episode=5, turn=5, play_truncated_turns=True)
    play = played(smollm2, ["abcdefgh"], 3, budget)
    assert (play.episode.stop, len(play.episode.turns)) == (StopReason.EPISODE_TOKENS, 1)
    assert len(play.segment.response_ids) == 5


def test_a_reply_that_stops_on_another_token_is_closed_for_it(smollm2):
    """Engines stop at every id of the model's generation config, such as `<|endoftext|>`."""
    stray = smollm2.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    play = played(smollm2, [[*split_ids(smollm2.tokenizer, "ab"), stray], "c"], 2)
    assert play.episode.turns[0].reply == Reply("ab", None, 3)
    check_tokens(play)
    assert (play.segment.response_ids[3], play.segment.response_mask[:4]) == (
        smollm2.tokenizer.eos_token_id,
        [1, 1, 1, 0],
    )


def test_an_engine_that_writes_nothing_is_a_bug(smollm2):
    with pytest.raises(RuntimeError, match="the engine returned no tokens"):
        played(smollm2, [[]], 1)


# The choice of a builder

NO_NEWLINE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NUMBERED = NO_NEWLINE.replace("{{ m.content }}", "{{ loop.index }}. {{ m.content }}")
LAST_MARKED = NO_NEWLINE.replace("{{ m.content }}", "{% if loop.last %}now: {% endif %}{{ m.content }}")
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + NO_NEWLINE


def test_the_builder_that_agrees_is_chosen(model):
    builder = choose_builder(model.tokenizer, model.model_type, model.options)
    assert type(builder) is QwenContinuousTokenBuilder


def test_verl_alone_would_lose_the_newline_of_smollm2(smollm2):
    """The trap of verl 0.9.1 that the choice avoids; if this fails, upstream has learnt the type."""
    alone = render_conversation(ContinuousTokenBuilder(smollm2.tokenizer), smollm2.tokenizer, messages())
    assert smollm2.tokenizer.decode(alone.ids) == smollm2.rendered(messages()).replace("hi<|im_end|>\n", "hi<|im_end|>")


def test_verls_own_choice_stays_where_it_agrees():
    model = load(NO_NEWLINE)
    assert type(choose_builder(model.tokenizer, "llama", {})) is ContinuousTokenBuilder
    check_tokens(played(model, REPLIES, 5))


@pytest.mark.parametrize("template", [NUMBERED, LAST_MARKED])
def test_a_template_that_no_builder_follows_is_refused(template):
    with pytest.raises(ConfigError, match=r"no token builder of verl agrees .*model_type='llama'"):
        choose_builder(load(template).tokenizer, "llama", {})


def test_a_template_without_a_system_role_is_refused_with_its_own_words():
    with pytest.raises(ConfigError, match=r"model_type='gemma'.* does not render a system message.*no system role\."):
        choose_builder(load(NO_SYSTEM).tokenizer, "gemma", {})


def messages() -> list[Message]:
    return [
        {"role": "system", "content": "Talk."},
        {"role": "user", "content": "Begin."},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "heard 1"},
    ]


CONTEXTS = [
    LastObservations(turns=1),
    LastObservations(turns=2, stride=3),
    Summary(turns=1),
    Summary(turns=3, stride=2),
]


@pytest.mark.parametrize("context", CONTEXTS, ids=repr)
def test_an_edited_context_trains_on_what_was_sampled_where_it_was_sampled(model, context):
    script = [text.replace("Action", "Summary: so far\nAction") for text in REPLIES if text.strip()]
    play = played(model, script, len(script), context=context)
    trained = [
        (segment.prompt_ids + segment.response_ids[:place], token)
        for segment in play.segments
        for place, (token, mask) in enumerate(zip(segment.response_ids, segment.response_mask, strict=True))
        if mask
    ]
    sampled = [
        ([*prompt, *ids[:place]], token)
        for prompt, ids in zip(play.engine.prompts, play.engine.written, strict=True)
        for place, token in enumerate(ids)
    ]
    assert trained == sampled
    assert [p for s in play.segments for p, m in zip(s.response_log_probs, s.response_mask, strict=True) if m] == [
        one for reply in play.engine.log_probs for one in reply
    ]
    assert len(play.segments) == context.segments(len(script)) > 1
    assert all(segment.response_mask[-1] == 1 for segment in play.segments)


def test_what_templates_leave_out_of_earlier_replies_was_trained_on_where_it_was_said(thinker):
    """Qwen3's template drops the thoughts of earlier replies, so an edited context shows replies without them."""
    script = [f"<think>\nthought {turn}\n</think>\n\nAction: {turn}" for turn in range(4)]
    play = played(thinker, script, 4, context=Summary(turns=1))
    written = [token for reply in play.engine.written for token in reply]
    assert [t for s in play.segments for t, m in zip(s.response_ids, s.response_mask, strict=True) if m] == written
    assert "thought" not in thinker.tokenizer.decode(play.segments[-1].prompt_ids)


@pytest.mark.parametrize("context", CONTEXTS, ids=repr)
def test_each_prompt_of_an_edited_context_is_the_templates_own(model, context):
    script = [text for text in REPLIES if text.strip()]
    play = played(model, script, len(script), context=context)
    for turn, prompt in enumerate(play.engine.prompts):
        shown = context.visible_messages(play.episode.messages[: 2 + 2 * turn], 2)
        rendered = without_empty_thoughts(model.rendered(shown))
        assert without_empty_thoughts(model.tokenizer.decode(prompt)) == rendered


def test_a_demonstration_with_an_edited_context_is_rendered_as_it_is_played(model):
    texts = [text for text in REPLIES if text.strip()]
    script = [encode_reply(model.tokenizer, text, model.tokenizer.eos_token_id) for text in texts]
    play = played(model, script, len(script), context=LastObservations(turns=2))
    agent = plain(LastObservations(turns=2))
    tokens = EpisodeTokens(
        choose_builder(model.tokenizer, model.model_type, model.options), play.policy.tokens.end_of_turn
    )
    shown = render_episode(tokens, model.tokenizer, agent, play.episode)
    assert [(s.prompt_ids, s.response_ids, s.response_mask) for s in shown] == [
        (s.prompt_ids, s.response_ids, s.response_mask) for s in play.segments
    ]


def test_a_recorded_episode_with_cut_turns_is_rendered_as_it_was_learnt_from(smollm2):
    """RL and supervised training must agree on what the model wrote: not the ends that were written for it."""
    texts = ["abcdefgh", "hi", "abcdefgh"]
    script = [encode_reply(smollm2.tokenizer, text, smollm2.tokenizer.eos_token_id) for text in texts]
    for play_truncated_turns in (True, False):
        budget = TokenBudget(prompt=100, episode=5_000, turn=2, play_truncated_turns=play_truncated_turns)
        play = played(smollm2, script, len(script), budget)
        agent = plain()
        tokens = EpisodeTokens(play.policy.tokens.builder, play.policy.tokens.end_of_turn)
        (shown,) = render_episode(tokens, smollm2.tokenizer, agent, play.episode)
        assert (shown.response_ids, shown.response_mask) == (play.segment.response_ids, play.segment.response_mask)


def test_an_edited_context_may_outlast_the_budget_of_one_stretch(smollm2):
    """What was given up makes room: a window that holds some turns holds an episode of ten."""
    script = [encode_reply(smollm2.tokenizer, "word " * 18, smollm2.tokenizer.eos_token_id)] * 10
    budget = TokenBudget(prompt=200, episode=200, turn=25)
    assert played(smollm2, script, 10, budget).episode.stop is StopReason.EPISODE_TOKENS
    window = played(smollm2, script, 10, budget, context=Summary(turns=1))
    assert len(window.episode.turns) == 10
    assert all(len(segment.prompt_ids + segment.response_ids) <= 400 for segment in window.segments)


def test_functions_are_in_every_prompt_and_answers_come_as_the_tool(model):
    agent = FunctionCalls(LineFormat())
    builder = choose_builder(model.tokenizer, model.model_type, model.options)
    if model.model_type == "llama":
        with pytest.raises(ConfigError, match=r"has no functions.*Choose another agent\.name"):
            check_tools(model.tokenizer, builder, agent.tools, model.options)
        return
    check_tools(model.tokenizer, builder, agent.tools, model.options)
    call = '<tool_call>\n{"name": "act", "arguments": {"action": "go"}}\n</tool_call>'
    engine = ScriptedEngine(model.tokenizer, [call] * 3)
    policy = model.policy(engine)
    policy.tokens.tools = agent.tools
    episode = asyncio.run(play(ITEM, Chatter(turns=3), agent, policy, EpisodeLimits(3)))
    assert [turn.action for turn in episode.turns] == ["go"] * 3
    rendered = model.tokenizer.apply_chat_template(
        episode.messages[:-2], tools=agent.tools, tokenize=False, add_generation_prompt=True, **model.options
    )
    assert without_empty_thoughts(model.tokenizer.decode(engine.prompts[-1])) == without_empty_thoughts(rendered)
    assert "<tool_response>" in rendered
