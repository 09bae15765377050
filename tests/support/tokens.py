"""Episodes played against a scripted engine, with the tokens that the engine read and wrote."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from transformers import AutoTokenizer

from tests import ROOT
from tests.support.fakes import ITEM, ScriptedEngine, Talk, plain
from verl_agent.agents.context import Context
from verl_agent.evaluation.what_if.given_replies import ContinuingPolicy
from verl_agent.models.resolve import prepare_smollm2
from verl_agent.rollout.chat_template import choose_builder
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.settings import TokenBudget
from verl_agent.rollout.tokens import EpisodeTokens, Segment
from verl_agent.types import Episode, Message, StepResult

TEMPLATES = ROOT / "tests" / "data/templates"
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
    """Tokenizer with a chat template.

    Attributes:
        tokenizer: tokenizer of SmolLM2, which has the special tokens of ChatML.
        options: `chat_template_kwargs`.
        model_type: type of the models that have this template.
    """

    tokenizer: Any
    options: dict[str, Any]
    model_type: str

    def rendered(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """Return the template's own rendering."""
        return self.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=add_generation_prompt, **self.options
        )

    def policy(self, engine: ScriptedEngine, budget: TokenBudget = AMPLE) -> ContinuingPolicy:
        end = self.tokenizer.eos_token_id
        tokens = EpisodeTokens(choose_builder(self.tokenizer, self.model_type, self.options), end)
        return ContinuingPolicy(engine, self.tokenizer, tokens, budget, {"temperature": 1.0}, frozenset({end}))


def load_model(template: str = "", model_type: str = "llama", **options: Any) -> Model:
    """Return SmolLM2's tokenizer with a chat template; with its own one if `template` is empty."""
    tokenizer = AutoTokenizer.from_pretrained(prepare_smollm2())
    if template:
        tokenizer.chat_template = template
    return Model(tokenizer, options, model_type)


class Chatter(Talk):
    """Environment that answers with unusual observations."""

    made: ClassVar[list[Talk]] = []

    async def step(self, action: str) -> StepResult:
        step = await super().step(action)
        return StepResult(OBSERVATIONS[self.heard % len(OBSERVATIONS)], step.reward, step.terminated)


@dataclass(frozen=True)
class PlayedTokens:
    """An episode with its engine, policy and segments."""

    episode: Episode
    engine: ScriptedEngine
    policy: ContinuingPolicy
    segments: list[Segment]

    @property
    def segment(self) -> Segment:
        assert len(self.segments) == 1
        return self.segments[0]


def play_tokens(
    model: Model, script, turns: int, budget: TokenBudget = AMPLE, context: Context | None = None, **engine
) -> PlayedTokens:
    """Play an episode against an engine that writes the replies of a script."""
    scripted = ScriptedEngine(model.tokenizer, script, **engine)
    policy = model.policy(scripted, budget)
    episode = asyncio.run(play_episode(ITEM, Chatter(turns=turns), plain(context), policy, EpisodeLimits(turns)))
    return PlayedTokens(episode, scripted, policy, policy.tokens.segments())


def check_tokens(play: PlayedTokens) -> None:
    """Check that the segment holds exactly the tokens that the engine read and wrote, for any episode and template."""
    prompts, written, log_probs = play.engine.prompts, play.engine.written, play.engine.log_probs
    mask: list[int] = []
    aligned: list[float] = []
    for turn, prompt in enumerate(prompts):
        if turn:
            before = prompts[turn - 1] + written[turn - 1]
            assert prompt[: len(before)] == before  # earlier ids do not change
            gap = len(prompt) - len(before)
            mask += [0] * gap
            aligned += [0.0] * gap
        mask += [1] * len(written[turn])
        aligned += log_probs[turn]
    assert play.segment.prompt_ids == prompts[0]
    assert play.segment.prompt_ids + play.segment.response_ids == prompts[-1] + written[-1]
    assert play.segment.response_mask == mask
    assert play.segment.response_mask[-1] == 1  # where verl puts the reward
    assert play.segment.response_log_probs == aligned
