"""Test the small runner: replies with a cache, updates, warm starts and resumed runs."""

import json
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from env_adapters.guess_number.adapter import GuessNumber
from tests import ROOT
from tests.support.packages import install_example
from verl_agent.config.composing import compose_training
from verl_agent.config.settings import read_run_env
from verl_agent.errors import ConfigError, EnvError
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.rollout.settings import TokenBudget
from verl_agent.rollout.tokens import Segment
from verl_agent.study.settings import Study, TinySettings
from verl_agent.study.tiny.learner import Batch, Learner, shares_of_signal
from verl_agent.study.tiny.model import new_model
from verl_agent.study.tiny.playing import Plays, SegmentRow, TinyPlayer
from verl_agent.study.tiny.training import TinyRun, Training, measurements
from verl_agent.study.tiny.warm_start import WarmStart, save_at_once, warm_start
from verl_agent.study.tiny.words import MARKS, WordBuilder, Words
from verl_agent.types import Episode, StopReason, TaskItem

RECIPE = ROOT / "recipes/studies/guess_number.yaml"
SMALL = [
    *("env.train_tasks=small_train", "env.eval_tasks=small_test", "env.options.ranges=null", "horizon.max_turns=[5]"),
    *("horizon.eval_max_turns=5", "data.train_batch_size=4", "actor_rollout_ref.rollout.n=4"),
]
ARMS = {"one": [], "other": []}
SETTINGS = TinySettings(
    width=32, layers=2, heads=2, warm_tasks=16, warm_updates=80, warm_batch=8, warm_rate=1e-2, eval_tasks=12
)


@pytest.fixture(scope="module")
def started():
    config = composed()
    return warm_start(read_run_env(config), SETTINGS, 1)


@cache
def composed(*overrides):
    return compose_training(RECIPE, [*SMALL, *overrides])


def played(config, started, policy=None):
    env = read_run_env(config)
    data = config["data"]
    budget = TokenBudget.of(env.episode, data["max_prompt_length"], data["max_response_length"])
    player = TinyPlayer(env, started.words, budget, 1)
    model = policy or started.new_policy(SETTINGS)
    items = env.tasks("small_train")[::9][:4]
    return player.play(model, items, 4, [EpisodeLimits(env.horizon.stages[0], None)] * len(items), 1)


def test_words_are_restored():
    text = "Craft 12 oak planks (using: 3 oak logs), then\nget it!"
    words = Words.of_texts([text])
    assert words.decode(words.encode(text)) == text
    assert words.encode("unseen") == [words.unknown_id]


def test_texts_never_have_the_ids_of_marks():
    text = "".join(MARKS)
    words = Words.of_texts([text])
    assert words.decode(words.encode(text)) == text
    assert min(words.encode(text)) >= len(MARKS)


def test_messages_are_rendered_with_a_mark_before_and_after_replies():
    words = Words.of_texts(["a b c d"])
    user, reply = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    ids = WordBuilder(words).build_initial_tokens([user, reply, user])
    a, b = words.encode("a")[0], words.encode("b")[0]
    assert ids == [a, words.reply_id, b, words.eos_token_id, a, words.reply_id]


@pytest.mark.parametrize("context", ["all", "last"])
def test_replies_have_the_log_probs_of_a_pass_over_the_whole_row(started, context):
    changed = [] if context == "all" else ["agent.context.keep=last", "agent.context.turns=2"]
    config = composed(*changed)
    policy = started.new_policy(SETTINGS)
    plays = played(config, started, policy)
    batch = Batch(plays.rows)
    assert any(row.key.endswith("_1") for row in batch.rows) == (context == "last")
    assert len({one.turns[0].reply.text for one in plays.episodes}) > 1
    with torch.no_grad():
        for rows, length in batch.parts(range(len(batch.rows))):
            chosen = batch.log_probs(policy, rows, length)[0] * batch.mask_BT[rows, :length]
            torch.testing.assert_close(chosen, batch.old_BT[rows, :length], atol=1e-4, rtol=1e-4)


def test_the_same_seed_plays_the_same_episodes(started):
    config = composed()
    texts = [[turn.reply.text for one in played(config, started).episodes for turn in one.turns] for _ in range(2)]
    assert texts[0] == texts[1]


class FailsOnce(GuessNumber):
    """Game whose first session of each task fails at its first action."""

    deterministic = False
    actions: ClassVar[dict[int, list[str]]] = {}

    async def step(self, action):
        self.actions.setdefault(self.target, []).append(action)
        if len(self.actions[self.target]) == 1:
            raise EnvError("down")
        return await super().step(action)


def test_a_retry_draws_other_replies_than_the_attempt_that_failed_and_the_same_ones_in_each_run(started):
    env = read_run_env(composed())
    budget = TokenBudget.of(env.episode, composed()["data"]["max_prompt_length"], 400)
    items = [item for item in env.tasks("small_train") if item.data["high"] == 12]

    def first_actions():
        FailsOnce.actions.clear()
        flaky = SimpleNamespace(
            live=FailsOnce(), new_agent=env.new_agent, credit=env.credit, label=env.label, horizon=env.horizon
        )
        limits = [EpisodeLimits(1, None, retries=1)] * len(items)
        plays = TinyPlayer(flaky, started.words, budget, 1).play(started.new_policy(SETTINGS), items, 1, limits, 1)
        assert len(plays.valid) == len(items)
        return [tuple(actions) for actions in FailsOnce.actions.values() if len(actions) == 2]

    drawn = first_actions()
    assert len(drawn) >= 6 and any(first != second for first, second in drawn)
    assert drawn == first_actions()


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["algorithm.adv_estimator=rloo", "credit.truncated=drop"],
        ["algorithm.adv_estimator=gae"],
        ["algorithm.adv_estimator=turn_gae", "credit.truncated=bootstrap"],
        ["algorithm.adv_estimator=gigpo", "credit.place=turn"],
        ["actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.entropy_coeff=0.01"],
        [
            "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm",
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        ],
    ],
    ids=lambda overrides: " ".join(overrides) or "grpo",
)
def test_an_update_changes_the_policy(started, overrides):
    config = composed(*overrides)
    env, policy = read_run_env(config), started.new_policy(SETTINGS)
    critic = new_model(started.words, SETTINGS, critic=True) if "gae" in config["algorithm"]["adv_estimator"] else None
    reference = started.new_policy(SETTINGS) if config["actor_rollout_ref"]["actor"]["use_kl_loss"] else None
    plays = played(config, started, policy)
    assert shares_of_signal(plays.rows)[0] > 0
    found = Learner(config, env.credit, policy, critic, reference, 1).update(plays.rows, 1)
    assert found["grad_norm"] > 0
    assert any(not torch.equal(now, started.weights[name]) for name, now in policy.state_dict().items())


def test_turns_of_groups_without_signal_are_counted():
    """Two groups of two episodes: 3 turns with different returns, one of them in two rows, and 5 with equal ones."""
    rewards = {"0_0_0": [0.0], "0_0_1": [0.0], "0_1_0": [1.0], "1_0_0": [0.0, 0.0], "1_1_0": [0.0, 0.0, 0.0]}
    segment = Segment([1], [2], [1], None)
    rows = [SegmentRow(key, segment, {"rewards": found}) for key, found in rewards.items()]
    assert shares_of_signal(rows) == (0.5, 5 / 8)


@pytest.mark.parametrize("name", ["leave_one_out", "shuffled_grpo"])
def test_an_estimator_of_another_package_trains(name, started, tmp_path, monkeypatch):
    for folder in install_example("own_algorithms", tmp_path):
        monkeypatch.syspath_prepend(folder)
    config = composed(f"algorithm.adv_estimator={name}")
    policy = started.new_policy(SETTINGS)
    learner = Learner(config, read_run_env(config).credit, policy, None, None, 1)
    assert learner.update(played(config, started, policy).rows, 1)["grad_norm"] > 0


def test_rewarded_replies_become_likelier(started):
    config = composed("actor_rollout_ref.actor.optim.lr=1.0e-3")
    env, policy = read_run_env(config), started.new_policy(SETTINGS)
    plays = played(config, started, policy)
    learner = Learner(config, env.credit, policy, None, None, 1)
    batch = Batch(plays.rows)
    returns = torch.tensor([sum(row.rewards["rewards"]) for row in batch.rows])
    mixed = [group for group in range(4) if returns[group * 4 : group * 4 + 4].unique().numel() > 1]
    rows = [group * 4 + place for group in mixed for place in range(4)]

    def gap():
        with torch.no_grad():
            length = batch.mask_BT.shape[1]
            sums = (batch.log_probs(policy, rows, length)[0] * batch.mask_BT[rows]).sum(1)
        return float(sums[returns[rows] > 0].mean() - sums[returns[rows] == 0].mean())

    before = gap()
    learner.update(plays.rows, 1)
    assert gap() > before


def test_a_stage_begins_with_a_new_optimizer_and_the_present_policy_as_reference(started):
    config = composed("actor_rollout_ref.actor.use_kl_loss=true")
    policy, reference = started.new_policy(SETTINGS), started.new_policy(SETTINGS)
    learner = Learner(config, read_run_env(config).credit, policy, None, reference, 1)
    learner.update(played(config, started, policy).rows, 1)
    assert learner.saved()["policy"][1]["state"]
    learner.begin_stage()
    assert not learner.saved()["policy"][1]["state"]
    assert all(torch.equal(reference.state_dict()[name], value) for name, value in policy.state_dict().items())


def test_a_warm_start_is_written_and_read(started, tmp_path):
    started.write(tmp_path / "1.pt")
    read = WarmStart.read(tmp_path / "1.pt")
    assert read.words.pieces == started.words.pieces
    assert all(torch.equal(read.weights[name], value) for name, value in started.weights.items())


def test_a_full_disk_is_an_os_error_and_leaves_the_old_file(started, tmp_path):
    file = tmp_path / "1.pt"
    started.write(file)
    before = file.read_bytes()
    (tmp_path / "1.pt.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        save_at_once([started.weights], file)
    assert file.read_bytes() == before


class Killed(Exception):
    """End of a process."""


class KilledTraining(Training):
    """Training whose process dies in the step after its third evaluation."""

    def step(self):
        if self._counts["points"] == 3:
            raise Killed
        return super().step()


def test_episodes_that_all_fail_end_the_run_with_the_error():
    item = TaskItem("own", "task-7")
    failed = Episode(item, 5, stop=StopReason.ENV_ERROR, error="no server")
    with pytest.raises(ConfigError, match=r"all 2 episodes of a step failed.*task-7: env_error: no server"):
        measurements(Plays([failed, failed], [], 0.0), 5)


def test_an_episode_that_another_limit_ended_is_not_one_at_the_turn_limit():
    ends = [StopReason.TURN_LIMIT, StopReason.TURN_TOKENS, StopReason.TERMINATED, StopReason.TERMINATED]
    episodes = [Episode(TaskItem("own", "1"), 5, stop=stop) for stop in ends]
    assert measurements(Plays(episodes, [], 0.0), 5)["limited"] == 0.25


class RecordingTraining(Training):
    """Training that keeps the tasks of each step with the turns before it."""

    def _play(self, items, samples, max_turns, step):
        if step:
            self.played = [*getattr(self, "played", []), (self._counts["turns"], {item.id for item in items})]
        return super()._play(items, samples, max_turns, step)


def test_the_second_half_of_the_budget_has_the_later_tasks(tmp_path, started):
    started.write(tmp_path / "1.pt")
    tiny = replace(SETTINGS, later_tasks="small_test")
    study = Study(question="", recipe="", arms=ARMS, seeds=[1], budget_turns=400, points=2, tiny=tiny)
    training = RecordingTraining(TinyRun(tmp_path, tmp_path / "1.pt", composed(), study, 1))
    training.to_the_end()
    env = read_run_env(composed())
    early, late = ({item.id for item in env.tasks(split)} for split in ("small_train", "small_test"))
    assert {before >= 200 for before, _ in training.played} == {False, True}
    assert all(tasks <= (early if before < 200 else late) for before, tasks in training.played)


@pytest.mark.parametrize("rule", ["horizon.steps_per_stage=3", "horizon.per_task={rule: signal}"])
def test_a_killed_run_resumes_to_the_same_points(tmp_path, started, rule):
    config = composed("horizon.max_turns=[2,5]", rule)
    warm = tmp_path / "warm/1.pt"
    started.write(warm)
    study = Study(question="", recipe="", arms=ARMS, seeds=[1], budget_turns=400, points=4, tiny=SETTINGS)
    whole, cut = (TinyRun(tmp_path / name, warm, config, study, 1) for name in ("whole", "cut"))
    whole.train()
    cut.folder.mkdir()
    with pytest.raises(Killed):
        KilledTraining(cut).to_the_end()
    file = cut.folder / "points.jsonl"
    lines = file.read_text()
    file.write_text(lines.partition("\n")[0] + "\n")
    with pytest.raises(ConfigError, match=r"has 1 of 3 evaluations\. Remove its folder"):
        cut.train()
    file.write_text(lines)
    cut.train()
    points = [
        [json.loads(line) for line in (run.folder / "points.jsonl").read_text().splitlines()] for run in (whole, cut)
    ]
    assert len(points[0]) == 5 and points[0][-1]["turns"] >= 400
    for one, other in zip(*points, strict=True):
        assert one["turns"] == other["turns"] and one.get("max_turns") == other.get("max_turns")
        assert one["success"] == pytest.approx(other["success"], abs=0.1)
    assert sorted(path.name for path in cut.folder.iterdir()) == ["done.json", "points.jsonl"]
