"""Test the agent loop with a scripted engine: seeds of requests, rows of episodes, prompts that are cut."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from tests.support.fakes import ScriptedEngine
from tests.support.judged import CRITERIA, verdict
from tests.support.model_server import ModelServer
from verl_agent.models.resolve import prepare_smollm2
from verl_agent.trace.record_files import read_records
from verl_agent.training.agent_loop import EpisodeLoop, WorkerState
from verl_agent.training.rollout_row import RolloutRow

CONFIG = {
    "env": {"name": "guess_number", "options": {"tolerant": True}, "hosts": {"where": "inline"}},
    "horizon": {"max_turns": [3]},
    "episode": {"max_tokens_per_turn": 8},
    "agent": {"name": "raw"},
    "data": {"overlong_prompt": "drop"},
}
COLUMNS = {
    "purpose": "train",
    "env_label": "guess_number",
    "tasks": "small_train",
    "task_id": "5:2",
    "global_steps": 4,
    "session_id": 1,
    "max_turns": 3,
    "draw": 0,
}


def loop(engine_name: str = "vllm", prompt_length: int = 200, **changes: Any) -> EpisodeLoop:
    """Return an agent loop as verl's worker creates it, with an engine that guesses 1, 3, 2."""
    made = EpisodeLoop.__new__(EpisodeLoop)
    made.config = OmegaConf.merge(OmegaConf.create(CONFIG), OmegaConf.create(changes))
    made.rollout_config = SimpleNamespace(
        prompt_length=prompt_length, response_length=100, seed=7, name=engine_name, n=2
    )
    made.tokenizer = AutoTokenizer.from_pretrained(prepare_smollm2())
    made.apply_chat_template_kwargs = {}
    made.server_manager = ScriptedEngine(made.tokenizer, ["1", "3", "2"])
    made.worker = WorkerState(made, "llama")
    return made


def run(made: EpisodeLoop, **columns: Any) -> list[Any]:
    return asyncio.run(made.run({"temperature": 1.0}, uid="random", **{**COLUMNS, **columns}))


def seeds(made: EpisodeLoop, name: str = "seed", **columns: Any) -> list[int]:
    run(made, **columns)
    return [sampling[name] for sampling in made.server_manager.sampling]


def test_each_request_of_training_has_its_own_seed():
    first = seeds(loop())
    assert len(set(first)) == 3
    assert first == seeds(loop()), "a resumed run draws the same numbers"
    assert not set(first) & set(seeds(loop(), session_id=2)), "samples of a group differ"
    assert not set(first) & set(seeds(loop(), purpose="validation"))
    assert not set(first) & set(seeds(loop(), draw=1)), "groups that DAPO draws again differ"


def test_verls_random_name_of_a_group_has_no_part_in_the_seed():
    rows = [RolloutRow.from_columns({**COLUMNS, "uid": uid}) for uid in ("a", "b")]
    assert rows[0].seed(7, 1) == rows[1].seed(7, 1)
    assert rows[0].seed(7, 1) != rows[0].seed(7, 2)


def test_sglang_gets_the_seed_by_its_own_name():
    made = loop("sglang")
    assert len(set(seeds(made, "sampling_seed"))) == 3
    assert "seed" not in made.server_manager.sampling[0]


def test_unseeded_sampling_leaves_the_random_numbers_to_the_engine():
    made = loop(episode={"seeded_sampling": False})
    run(made)
    names = ["max_tokens", "stop_token_ids", "temperature"]
    assert [sorted(sampling) for sampling in made.server_manager.sampling] == [names] * 3


def test_a_prompt_is_cut_to_its_budget_on_request():
    full = len(run(loop())[0].prompt_ids)
    (row,) = run(loop(prompt_length=full, data={"overlong_prompt": "truncate_observation"}))
    assert len(row.prompt_ids) == full, "a prompt that fits is not cut"


def test_a_row_carries_the_number_of_replays():
    (row,) = run(loop())
    assert row.extra_fields["episode"]["replays"] == 0


@pytest.mark.parametrize("mode", ["add", "replace"])
def test_the_reward_of_a_judge_reaches_the_row_and_the_record(tmp_path, mode):
    def settings(server: ModelServer) -> dict[str, Any]:
        api = {"name": "fake", "base_url": f"{server.url}/v1", "retries": 0}
        return {
            "judge": {"rubric": {"criteria": CRITERIA}, "api": api, "mode": mode, "weight": 0.4},
            "trainer": {"default_local_dir": str(tmp_path)},
            "episode": {"record_dir": str(tmp_path / "episodes")},
        }

    with ModelServer(lambda messages: verdict(10)).running() as server:
        (row,) = run(loop(**settings(server)))
        (tested,) = run(loop(**settings(server)), purpose="validation", max_turns=None)
        assert len(server.bodies) == 1, "the cache of the run has the verdict"
    first, second = read_records(tmp_path / "episodes")
    own = second["reward"] if mode == "add" else first["judgements"][0]["replaced"]
    assert row.reward_score == pytest.approx(0.4 + (own if mode == "add" else 0.0))
    assert tested.reward_score == pytest.approx(own if mode == "add" else 0.4)
    assert [one["score"] for record in (first, second) for one in record["judgements"]] == [1.0, 1.0]


@pytest.mark.parametrize(("limit", "given"), [(1, 2), (2, 1), (3, 0)])
def test_a_replay_is_a_part_of_the_prompt_of_training_episodes_alone(limit, given):
    """The demonstration of 5:2 guesses 3, 1 and 2, the engine 1, 3 and 2."""
    changes = {"horizon": {"max_turns": [1, 2, 3], "replay": {}}}
    made = loop(prompt_length=400, **changes)
    plain, replayed = run(loop(prompt_length=400))[0], run(made, max_turns=limit)[0]
    assert made.tokenizer.decode(replayed.prompt_ids).count("<|im_start|>assistant") == 1 + given
    assert (len(replayed.prompt_ids) > len(plain.prompt_ids)) == (given > 0)
    assert sum(replayed.response_mask) == 2 * limit, "the guess and the end of the reply"
    assert made.tokenizer.decode(replayed.response_ids).startswith("1"), "the first guess of the policy"
    summary = replayed.extra_fields["episode"]
    assert (summary["turns"], summary["max_turns"], summary.get("oracle_turns")) == (limit, limit, None if given else 3)
    validated = run(loop(prompt_length=400, **changes), purpose="validation", max_turns=None)[0]
    assert validated.prompt_ids == plain.prompt_ids
