"""Tests of truncated episodes: left out of the loss, or continued by the critic's value of their last state."""

from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace

import pytest
import torch
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.core_algos import agg_loss
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from tests.support.fakes import plain
from tests.support.letters import END, LetterBuilder
from tests.support.tokens import load_model, play_tokens
from verl_agent.agents.context import LastObservations
from verl_agent.errors import ConfigError
from verl_agent.rollout.tokens import EpisodeTokens
from verl_agent.training.agent_loop import add_last_state
from verl_agent.training.trainer import EMPTY_STEPS, EpisodeTrainer
from verl_agent.training.turn_batch import TurnBatch
from verl_agent.types import Episode, StopReason, TaskItem

MASKS = [torch.tensor([1, 1, 0, 1]), torch.tensor([1, 0, 1, 1, 1, 1]), torch.tensor([0])]


def batch(*dropped: bool) -> TurnBatch:
    return TurnBatch([], MASKS, [*dropped, False], [False, False, True])


def masks_of(turn_batch: TurnBatch) -> dict[str, list[torch.Tensor]]:
    return turn_batch.masks_without_dropped(dict.fromkeys(("response_mask", "loss_mask"), MASKS))


# Left out of the loss


def mean_loss(masks: dict[str, list[torch.Tensor]], losses: list[torch.Tensor]) -> float:
    """Return verl's mean over tokens (workers/engine/fsdp/transformer_impl.py and workers/utils/losses.py)."""
    padded = torch.nn.utils.rnn.pad_sequence
    tokens = sum(int(mask.sum()) for mask in masks["loss_mask"])
    mask_BT = padded(masks["response_mask"], batch_first=True)
    return agg_loss(padded(losses, batch_first=True), mask_BT, "token-mean", batch_num_tokens=tokens).item()


def test_a_dropped_episode_changes_neither_the_loss_nor_its_mean_over_tokens():
    losses = [torch.tensor([1.0, 2.0, 9.0, 3.0]), torch.full((6,), 100.0), torch.tensor([50.0])]
    assert mean_loss(masks_of(batch(False, True)), losses) == pytest.approx(6.0 / (3 + 1))
    assert mean_loss(masks_of(batch(False, False)), losses) == pytest.approx(506.0 / 8)


def test_a_mini_batch_of_dropped_episodes_has_a_loss_of_0_and_not_nan():
    masks = {name: rows[1:] for name, rows in masks_of(batch(True, True)).items()}
    assert mean_loss(masks, [torch.ones(6), torch.ones(1)]) == 0.0


def test_masks_of_the_batch_itself_are_not_changed():
    masks_of(batch(True, True))
    assert [mask.tolist() for mask in MASKS] == [[1, 1, 0, 1], [1, 0, 1, 1, 1, 1], [0]]


class Updates(EpisodeTrainer):
    """Trainer that only counts what it skips."""

    def __init__(self, turn_batch: TurnBatch) -> None:
        self.plan = SimpleNamespace(schedule=SimpleNamespace(folder=Path(mkdtemp())))
        self._turn_batch, self._turn_critic, self._empty_steps, self.global_steps = turn_batch, False, 0, 1


META = KVBatchMeta(["a_0_0"], [{}], partition_id="train")


def test_a_batch_of_dropped_episodes_updates_the_critic_only():
    """Verl's update reads first what this trainer does not have."""
    skipping = Updates(batch(True, True))
    assert skipping._update_actor(META, {}) is META
    with pytest.raises(AttributeError, match="has no attribute"):
        skipping._update_critic(META, {})
    with pytest.raises(AttributeError, match="has no attribute"):
        Updates(batch(False, False))._update_actor(META, {})
    assert issubclass(EpisodeTrainer, PPOTrainerSync)


def test_steps_without_any_episode_in_the_loss_end_the_run_with_a_config_error():
    counting = Updates(batch(True, True))
    for _ in range(EMPTY_STEPS - 1):
        counting._count_empty(True)
    counting._count_empty(False)
    for _ in range(EMPTY_STEPS - 1):
        counting._count_empty(True)
    with pytest.raises(ConfigError, match=r"credit\.truncated=drop left no episode .* Raise horizon\.max_turns"):
        counting._count_empty(True)


# The last state


def cut(messages: list[str], stop: StopReason = StopReason.TURN_LIMIT) -> Episode:
    """Return an episode of alternating messages, the first one from the environment."""
    roles = ("user", "assistant")
    said = [{"role": roles[index % 2], "content": text} for index, text in enumerate(messages)]
    return Episode(TaskItem("talk", "1"), 9, messages=said, prompt_length=1, stop=stop)


def tokens_of(episode: Episode, closed: bool = True) -> EpisodeTokens:
    """Return the tokens as the policy leaves them: without an observation after the last reply."""
    tokens = EpisodeTokens(LetterBuilder(), END)
    for index, message in enumerate(episode.messages):
        if message["role"] == "assistant":
            tokens.add_messages(episode.messages[:index])
            tokens.add_reply(message["content"], [ord(letter) for letter in message["content"]] + [END] * closed)
    return tokens


def extended(episode: Episode, tokens: EpisodeTokens, max_tokens: int = 99, context=None):
    return add_last_state(tokens.segments(), episode, plain(context), tokens, max_tokens)


def test_a_row_cut_by_the_turn_limit_ends_with_the_last_observation_and_one_token():
    episode = cut(["go?", "up", "wall", "no", "hall"])
    (row,) = extended(episode, tokens_of(episode))
    assert row.response_ids[-5:] == [*map(ord, "hall"), END]
    assert row.response_mask == [1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0]


def test_a_row_cut_within_a_reply_ends_with_one_token_more():
    episode = cut(["go?", "up"], StopReason.EPISODE_TOKENS)
    (row,) = extended(episode, tokens_of(episode, closed=False))
    assert (row.response_ids, row.response_mask) == ([*map(ord, "up"), END], [1, 1, 0])


def test_a_budget_that_ends_between_two_turns_adds_the_observation_that_the_policy_read():
    episode = cut(["go?", "up", "wall"], StopReason.EPISODE_TOKENS)
    tokens = tokens_of(episode)
    tokens.add_messages(episode.messages)
    (row,) = extended(episode, tokens)
    assert row.response_ids == [*map(ord, "up"), END, *map(ord, "wall"), END]


def test_a_state_that_does_not_fit_is_left_out():
    episode = cut(["go?", "up", "wall"])
    (row,) = extended(episode, tokens_of(episode), max_tokens=len("go?up") + 1 + len("wall"))
    assert row.response_ids == [*map(ord, "up"), END]


def test_a_state_that_begins_a_new_segment_is_left_out():
    episode = cut(["go?", "up", "wall", "no", "hall"])
    rows = extended(episode, tokens_of(episode), context=LastObservations(turns=1))
    assert rows[-1].response_mask[-1] == 1


def test_the_last_state_is_what_the_model_would_have_read():
    """With a real chat template: the tokens before a third reply, after an episode of two turns."""
    model = load_model()
    longer = play_tokens(model, ["one", "two", "three"], turns=3)
    shorter = play_tokens(model, ["one", "two"], turns=2)
    shorter.episode.messages[-1] = longer.episode.messages[len(shorter.episode.messages) - 1]
    (row,) = add_last_state(shorter.segments, shorter.episode, plain(), shorter.policy.tokens, 10_000)
    assert row.prompt_ids + row.response_ids[:-1] == longer.engine.prompts[2]
