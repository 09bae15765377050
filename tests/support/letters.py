"""Episodes with one token per letter: built as in training, without a tokenizer or a model."""

from itertools import zip_longest

from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder, MergeResult

from verl_agent.rollout.tokens import EpisodeTokens, Segment
from verl_agent.types import Message

END = 2
"""Id that ends a reply."""


class LetterBuilder(ContinuousTokenBuilder):
    """Token builder that renders each letter of a message as one id."""

    def __init__(self) -> None:
        super().__init__(tokenizer=None)

    def build_initial_tokens(self, messages: list[Message], **_: object) -> list[int]:
        return [ord(letter) for message in messages for letter in message["content"]]

    def merge_context_tokens(self, previous: list[Message], updated: list[Message], ids: list[int], **_: object):
        new = self.build_initial_tokens(updated[len(previous) :])
        return MergeResult(token_ids=ids + new, appended_token_count=len(new), kind="context")


def letter_episode(replies: list[str], observations: list[str]) -> Segment:
    """Return the only segment of an episode. A reply without an observation is truncated and ends the episode."""
    tokens = EpisodeTokens(LetterBuilder(), END)
    messages: list[Message] = [{"role": "user", "content": "begin"}]
    for reply, observation in zip_longest(replies, observations):
        tokens.add_messages(messages)
        tokens.add_reply(reply, [ord(letter) for letter in reply] + [END] * (observation is not None))
        messages.append({"role": "assistant", "content": reply})
        if observation is not None:
            messages.append({"role": "user", "content": observation})
            tokens.add_messages(messages)
    (segment,) = tokens.segments()
    return segment


WON = letter_episode(["go", "up"], ["stone", "you won"])
LOST = letter_episode(["left", "no", "x"], ["wall", "wall", "too late"])
SHORT = letter_episode(["stay"], ["a wolf"])
TRUNCATED = letter_episode(["in", "aaaaaa"], ["a hall"])
