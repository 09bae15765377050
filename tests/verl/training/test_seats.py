"""Test training with two seats of one policy: matches, groups and baselines of each seat, and refusals.

test_every_environment.py trains two seats in a run.
"""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from tests.support.arenas import Duel
from tests.support.estimators import moved_baseline
from tests.support.fakes import ScriptedEngine, ScriptedPolicy, plain
from tests.support.model_server import ModelServer
from tests.support.models import CHATML, write_byte_model
from tests.support.packages import write_metadata
from verl_agent.agents.settings import AgentSettings
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.config.settings import RunEnv
from verl_agent.envs.arena import SeatPlayer
from verl_agent.envs.settings import EnvSettings
from verl_agent.errors import ConfigError, EnvError
from verl_agent.horizon import Horizon
from verl_agent.models.resolve import prepare_smollm2
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.matches import HeldSeat
from verl_agent.rollout.player import Player
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.rollout.settings import EpisodeSettings, TokenBudget
from verl_agent.rollout.tokens import Segment
from verl_agent.training.agent_loop import EpisodeLoop, WorkerState
from verl_agent.training.estimators import rae
from verl_agent.training.rollout_row import RolloutRow
from verl_agent.training.seat_policies import SeatPolicies
from verl_agent.training.seats import Matches, check_comparison
from verl_agent.training.turns import BATCH_TURNS, BatchTurns, locate_turns

SHORT = Segment([1], [7, 0], [1, 0], None)
"""Row of one reply of one token."""


def test_rae_subtracts_the_running_mean_of_the_role():
    played = [("a_1_0", "right", -1.0), ("a_0_0", "left", 1.0), ("b_0_0", "left", 0.0), ("b_1_0", "right", 2.0)]
    masks = [torch.tensor(SHORT.response_mask) for _ in played]
    fields = [{"rewards": [value], "anchors": ["s"], "first": 0, "role": role} for _, role, value in played]
    batch = BatchTurns(locate_turns([key for key, *_ in played], masks, fields), RewardShaping(), None, {"left": 1.0})
    token = BATCH_TURNS.set(batch)
    try:
        advantages_BT, _ = rae(torch.zeros(4, 2), torch.stack(masks))
    finally:
        BATCH_TURNS.reset(token)
    baselines = {"left": moved_baseline(1.0, [1.0, 0.0]), "right": moved_baseline(0.0, [-1.0, 2.0])}
    assert batch.baselines == pytest.approx(baselines)
    torch.testing.assert_close(
        advantages_BT, torch.tensor([[value - baselines[role], 0.0] for _, role, value in played])
    )


def test_groups_of_an_arena_are_parted_by_seat():
    fields = [{"rewards": [1.0], "anchors": ["s"], "first": 0, "role": role} for role in ("left", "right", "")]
    masks = [torch.tensor(SHORT.response_mask)] * 3
    turns = locate_turns(["a_0_0", "a_1_0", "a_2_0"], masks, fields)
    assert [turn.group for turn in turns] == ["a left", "a right", "a"]


CONFIG = {
    "env": {"name": "duel", "options": {"seats": ["self", "self"]}, "hosts": {"where": "inline"}},
    "horizon": {"max_turns": [3]},
    "episode": {"max_tokens_per_turn": 8},
    "agent": {"name": "raw"},
    "data": {"overlong_prompt": "drop"},
}


@pytest.fixture
def register_duel(tmp_path, monkeypatch):
    write_metadata(tmp_path, "duel", {"verl_agent.envs": {"duel": "tests.support.arenas:Duel"}})
    monkeypatch.syspath_prepend(tmp_path)


def loop(texts, worker=None, **options):
    """Return an agent loop as verl's worker creates it, with an engine that writes these texts."""
    made = EpisodeLoop.__new__(EpisodeLoop)
    made.config = OmegaConf.merge(OmegaConf.create(CONFIG), OmegaConf.create({"env": {"options": options}}))
    made.rollout_config = SimpleNamespace(prompt_length=200, response_length=100, seed=7, name="vllm", n=2)
    made.tokenizer = AutoTokenizer.from_pretrained(prepare_smollm2())
    made.apply_chat_template_kwargs = {}
    made.server_manager = ScriptedEngine(made.tokenizer, texts)
    made.worker = worker or WorkerState(made, "llama")
    return made


def columns(session):
    row = {"purpose": "train", "env_label": "duel", "tasks": "train", "task_id": "train-1", "global_steps": 1}
    return {**row, "session_id": session, "max_turns": 3, "draw": 0, "uid": "group"}


def test_the_sessions_of_a_prompt_meet_in_matches(register_duel):
    first = loop(["1"])
    loops = [first, loop(["12"], first.worker), loop(["123"], first.worker), loop(["1"], first.worker)]

    async def together():
        return await asyncio.gather(*(one.run({}, **columns(at)) for at, one in enumerate(loops)))

    rows = [row for (row,) in asyncio.run(together())]
    assert [row.reward_score for row in rows] == [-1, 1, 1, -1]
    assert [row.extra_fields["turns"]["role"] for row in rows] == ["duel: duel, left", "duel: duel, right"] * 2
    assert [row.extra_fields["episode"]["category"] for row in rows] == ["duel, left", "duel, right"] * 2


def test_a_frozen_checkpoint_plays_the_other_seat(register_duel, tmp_path):
    write_byte_model(tmp_path / "frozen", ["You are left. Write 1 or 12."], vocabulary=300)
    one = loop(["123456789"], seats=["self", f"frozen:{tmp_path / 'frozen'}"])
    (row,) = asyncio.run(one.run({}, **columns(0)))
    assert row.reward_score in (-1, 0, 1) and row.extra_fields["turns"]["role"] == "duel: duel, left"


def test_a_model_behind_an_api_plays_the_other_seat(register_duel):
    with ModelServer(lambda said: "12").running() as server:
        one = loop(["1"], seats=["self", f"api:large@{server.url}/v1"])
        (row,) = asyncio.run(one.run({}, **columns(0)))
    (body,) = server.bodies
    assert row.reward_score == -1, "1 has fewer different digits than 12"
    assert body["model"] == "large" and body["messages"][-1]["content"].startswith("You are right.")


def test_policies_of_other_seats_read_the_functions_and_options_of_the_prompt(tmp_path):
    """Without them the opponent does not know how to act, or thinks where the trained policy does not."""
    template = "{% if tools %}{{ note }} {{ tools[0].function.name }} {% endif %}" + CHATML
    write_byte_model(tmp_path / "frozen", ["act"], vocabulary=300)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "frozen")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path / "frozen")

    async def read(player, seats):
        env, budget = replace(duel(seats), agent=AgentSettings("tools")), TokenBudget(200, 100, 8)
        env.__dict__["live"] = Duel(seats)
        policies = SeatPolicies(env.live, env, budget, {"note": "option"})
        return await policies._policy(SeatPlayer(*player), EpisodeSeed(1, "train", "duel", "1", 1, 0))

    frozen = asyncio.run(read(("frozen", str(tmp_path / "frozen")), ["self", "frozen:x"]))
    frozen.tokens.add_messages([{"role": "user", "content": "Begin."}])
    assert tokenizer.decode(frozen.tokens.ids).startswith("option act ")
    api = asyncio.run(read(("api", "large@http://127.0.0.1:1/v1"), ["self", "api:x"]))
    assert [tool["function"]["name"] for tool in api.tools] == ["act"]


def test_a_frozen_checkpoint_that_is_missing_is_named(register_duel, tmp_path):
    async def begin():
        one = loop(["12"], seats=["self", f"frozen:{tmp_path / 'none'}"])
        env, row = one.worker.envs["duel"], RolloutRow.from_columns(columns(0))
        player = Player(plain, env.new_session, lambda item, seed: ScriptedPolicy([]), env.limits(row))
        place = env.place(row, env.item("train", "train-1"), player)
        await place.match.begin(0)
        await place.match.act(0, "12")

    with pytest.raises(EnvError, match=r"right cannot play on: .*none"):
        asyncio.run(begin())


def test_a_failure_of_another_policy_is_no_win():
    """The other seat's episode ends before its error is known; its seat may not forfeit in between."""
    arena = Duel(["self", "frozen:x"])
    matches, row = Matches(arena, "duel"), RolloutRow.from_columns(columns(0))

    async def fails(item, match, seat):
        policy = ScriptedPolicy([RuntimeError("API down")])
        await play_episode(item, HeldSeat(match, seat), plain(), policy, EpisodeLimits(5, None))

    async def run():
        item = arena.tasks("train")[0]
        place = matches.join(row, item, arena.new_session, fails)
        policy, limits = ScriptedPolicy(["12", "12"]), EpisodeLimits(5, None)
        return await play_episode(place.item, place.new_session(), plain(), policy, limits)

    episode = asyncio.run(run())
    assert not episode.valid and "right cannot play on: API down" in episode.error


class Closed(Duel):
    """Game that counts how often its sessions are closed."""

    def __init__(self, closed, seats):
        super().__init__(seats)
        self.closed = closed

    async def close(self):
        self.closed.append(self)


def test_a_match_closes_its_session_when_the_last_of_its_seats_has_left():
    arena, row, opened = Closed([], ["self", "frozen:x"]), RolloutRow.from_columns(columns(0)), []
    matches = Matches(arena, "duel")

    def new_session():
        opened.append(arena.new_session())
        return opened[-1]

    async def plays(item, match, seat):
        await play_episode(item, HeldSeat(match, seat), plain(), ScriptedPolicy(["1"]), EpisodeLimits(5, None))

    async def run():
        place = matches.join(row, arena.tasks("train")[0], new_session, plays)
        policy, limits = ScriptedPolicy(["12", "12"]), EpisodeLimits(5, None)
        return await play_episode(place.item, place.new_session(), plain(), policy, limits)

    assert asyncio.run(run()).success
    assert opened[0].closed == opened


def duel(seats):
    env = RunEnv(
        env=EnvSettings("duel"),
        agent=AgentSettings("raw"),
        horizon=Horizon([2]),
        episode=EpisodeSettings(max_tokens_per_turn=8),
    )
    env.__dict__["live"] = Duel(seats)
    return env


@pytest.mark.parametrize(
    ("seats", "estimator", "samples", "message"),
    [
        (["self", "self"], "turn_returns", 4, "adv_estimator='turn_returns' compares the episodes of all seats.*rae"),
        (["self", "self"], "reinforce_plus_plus", 4, "Or train one seat"),
        (["self", "self"], "grpo", 5, r"rollout.n=5 is not allowed.*multiples of 2 from 4 on"),
        (["self", "self"], "grpo", 2, r"rollout.n=2 is not allowed"),
    ],
)
def test_settings_that_cannot_part_the_seats_raise_config_error(seats, estimator, samples, message):
    with pytest.raises(ConfigError, match=message):
        check_comparison(estimator, samples, 2, duel(seats))


@pytest.mark.parametrize(("opponent", "refused"), [("self", True), ("frozen:x", True), ("script:random", False)])
def test_the_result_of_a_match_that_a_limit_ends_is_not_bootstrapped(opponent, refused, tmp_path):
    write_byte_model(tmp_path / "x", ["act"], vocabulary=300)
    env = replace(duel(["self", "script:random"]), credit=RewardShaping(truncated="bootstrap"))
    env.__dict__["live"] = Duel(["self", opponent.replace("x", str(tmp_path / "x"))])
    with pytest.raises(ConfigError, match=r"bootstrap.*Allowed: as_is, drop") if refused else nullcontext():
        check_comparison("turn_gae", 2, 2, env)


def test_one_trained_seat_may_have_any_estimator():
    check_comparison("turn_returns", 3, 1, duel(["self", "script:random"]))
    check_comparison("rae", 2, 2, duel(["self", "self"]))
    check_comparison("grpo", 4, 1, duel(["self", "script:random"]), filters=True)


def test_groups_of_several_trained_seats_are_not_filtered_by_return():
    with pytest.raises(ConfigError, match=r"filter_groups.enable=true is not allowed with 2 .*skip_uniform"):
        check_comparison("grpo", 4, 2, duel(["self", "self"]), filters=True)
