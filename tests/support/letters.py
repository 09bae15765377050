"""Episodes in letters: their tokens are grown as in training, without a tokenizer or a model."""

from itertools import zip_longest

from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder, MergeResult

from verl_agent.rollout.tokens import EpisodeTokens, Segment
from verl_agent.types import Message

END = 2


class LetterBuilder(ContinuousTokenBuilder):
    """Renders a message as one id for each letter: enough to grow an episode's tokens without a tokenizer."""

    def __init__(self) -> None:
        super().__init__(tokenizer=None)

    def build_initial_tokens(self, messages: list[Message], **_: object) -> list[int]:
        return [ord(letter) for message in messages for letter in message["content"]]

    def merge_context_tokens(self, previous: list[Message], updated: list[Message], ids: list[int], **_: object):
        new = self.build_initial_tokens(updated[len(previous) :])
        return MergeResult(token_ids=ids + new, appended_token_count=len(new), kind="context")


def episode(replies: list[str], observations: list[str]) -> Segment:
    """The segment of an episode; one reply more than observations is a last one that its token budget cut."""
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


WON = episode(["go", "up"], ["stone", "you won"])
LOST = episode(["left", "no", "x"], ["wall", "wall", "too late"])
SHORT = episode(["stay"], ["a wolf"])
CUT = episode(["in", "aaaaaa"], ["a hall"])
