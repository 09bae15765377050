"""Test that conversations survive the way through observations, in time linear in the length of an episode."""

import random
import time

from verl_agent.envs.program.conversation import MARK, conversation_at, to_observation, with_limits
from verl_agent.types import Message

LIMITS = ({}, {"max_tokens": 3}, {"stop": ["a"]}, {"max_tokens": 3, "stop": ["b", "c"]})
TEXTS = ("a", "b", "", MARK, MARK + "c", "größe")


def drawn(random_: random.Random, most: int) -> list[Message]:
    """Return random messages, of which the last one is of the user."""
    roles = [random_.choice(("system", "user", "assistant")) for _ in range(random_.randrange(most))]
    return [{"role": role, "content": random_.choice(TEXTS)} for role in (*roles, "user")]


def test_any_conversation_survives_the_way_through_observations():
    random_ = random.Random(0)
    for _ in range(300):
        sent = with_limits(drawn(random_, 4), random_.choice(LIMITS))
        episode, prompt_length = list(sent), len(sent)
        for _ in range(random_.randrange(8)):
            reply: Message = {"role": "assistant", "content": random_.choice(TEXTS)}
            before = [*sent, reply]
            kept = [] if random_.random() < 0.3 else before[: random_.choice((len(before), random_.randrange(9)))]
            plain: list[Message] = [{"role": one["role"], "content": one["content"]} for one in kept]
            sent = with_limits([*plain, *drawn(random_, 3)], random_.choice(LIMITS))
            episode += [reply, {"role": "user", "content": to_observation(before, sent)}]
            assert conversation_at(episode, prompt_length) == sent


def test_reading_an_episode_takes_time_linear_in_its_turns():
    """Eight times the turns take less than twenty times the time; a quadratic reader takes sixty-four times it."""

    def seconds(turns: int) -> float:
        turn: list[Message] = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
        episode: list[Message] = [{"role": "user", "content": "go"}, *turn * turns]
        start = time.process_time()
        assert len(conversation_at(episode, 1)) == len(episode)
        return time.process_time() - start

    few = min(seconds(1000) for _ in range(3))
    assert min(seconds(8000) for _ in range(3)) < max(20 * few, 0.5)
