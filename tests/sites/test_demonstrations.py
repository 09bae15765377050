"""Tests that the oracle's episodes in a browser are recorded and that a warm start learns from them."""

import asyncio

import pytest
from rich.console import Console
from transformers import AutoTokenizer

from tests.support.composing import ROOT, recipe
from tests.support.web import needs_chromium
from verl_agent.config.plan import OfflinePlan
from verl_agent.evaluation.job import prepare_evaluation
from verl_agent.evaluation.run import play_pending
from verl_agent.models.resolve import prepare_smollm2
from verl_agent.training.offline.encoding import EpisodeEncoder
from verl_agent.training.offline.sft import episode_rows

RECIPES = ROOT / "recipes/webarena"


def record_episodes(kind, folder, *overrides):
    """Return the records of the oracle's episodes on the first tasks of a recipe."""
    config = recipe(RECIPES / f"demos_{kind}_cpu.yaml", f"evaluation.output_dir={folder}", *overrides)
    job = prepare_evaluation(config)
    asyncio.run(play_pending(job, Console(quiet=True)))
    return job.records()


def training_rows(kind, folder, tokenizer):
    """Return the rows that the warm start of a recipe reads from the records."""
    config = recipe(RECIPES / f"sft_{kind}_cpu.yaml", f"episodes.records=[{folder}]")
    plan = OfflinePlan.read(config)
    encoder = EpisodeEncoder(tokenizer, "llama", plan.played, plan.lengths.row)
    return episode_rows(plan).datasets(encoder)[0]


@needs_chromium
@pytest.mark.parametrize("kind", ["miniwob", "shop"])
@pytest.mark.parametrize("part", ["train", "test"])
def test_the_tasks_of_a_recipe_fit_its_limits(part, kind, tmp_path, monkeypatch, request):
    monkeypatch.chdir(ROOT)
    if kind == "shop":
        monkeypatch.setenv("VERL_AGENT_SITES", str(request.getfixturevalue("sites").home.folder))
    records = record_episodes(kind, tmp_path, f"evaluation.tasks=recipes/webarena/{kind}_cpu_{part}.txt")
    limit = recipe(RECIPES / f"eval_{kind}_cpu.yaml").data.max_prompt_length
    tokenizer = AutoTokenizer.from_pretrained(prepare_smollm2())
    prompts = [tokenizer.apply_chat_template(record["messages"][:2], tokenize=False) for record in records]
    assert max(len(tokenizer(one)["input_ids"]) for one in prompts) + 3 <= limit  # the mark of a reply has 3
    if part == "train":
        assert len(training_rows(kind, tmp_path, tokenizer)) == len(records)  # a longer one raises ConfigError


@needs_chromium
@pytest.mark.parametrize(("kind", "count"), [("miniwob", 4), ("shop", 1)])
def test_warm_start_learns_the_actions_of_the_oracle(kind, count, tmp_path, monkeypatch, request):
    monkeypatch.chdir(ROOT)
    if kind == "shop":
        monkeypatch.setenv("VERL_AGENT_SITES", str(request.getfixturevalue("sites").home.folder))
    records = record_episodes(kind, tmp_path, f"evaluation.max_tasks={count}")
    assert [record["success"] for record in records] == [True] * count
    tokenizer = AutoTokenizer.from_pretrained(prepare_smollm2())
    rows = training_rows(kind, tmp_path, tokenizer)
    assert len(rows) == count
    for row, record in zip(rows, sorted(records, key=lambda record: record["task"]), strict=True):
        trained = tokenizer.decode(row["input_ids"][row["loss_mask"] > 0])
        assert trained == "".join(f"```{turn['action']}```<|im_end|>" for turn in record["turns"])
