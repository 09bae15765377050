"""AgentEvol and DPO with an untrained model: `python -m tests.bench.evolve [FOLDER]`.

A llama of half a million parameters, with its own tokenizer, guesses numbers from 1 to at most 12 in four turns.
The base set has 16 binary searches. AgentEvol: each of three rounds plays the 51 training items, keeps the solved
episodes and trains the random model again. DPO: the policy of the base set trains on pairs of the episodes that it
played in the first round. Success is measured on the 51 explored items, because a model of this size generalizes
little to other ranges. An interrupted benchmark resumes.
"""

import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from tests.support.models import write_byte_model
from verl_agent.models.resolve import resolve_checkpoint
from verl_agent.results.comparison import compare
from verl_agent.results.folder import RECORDS
from verl_agent.results.results import summarize
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records

OPTIONS = {"tolerant": True}
ROUNDS = 3
EVOLVE = """# AgentEvol with a tiny model, written by tests/bench/evolve.py.
defaults: [agent_evolve, _self_]
evolve:
  explore: [{{recipe: {folder}/play.yaml, tasks: small_train, samples: 8}}]
  learn: {folder}/learn.yaml
  weight: task
  validate: false
  rounds: {rounds}
  output_dir: {folder}/rounds
"""
PLAY = """# Episodes of the tiny model, written by tests/bench/evolve.py.
defaults: [agent_eval, cpu_eval, _self_]
env: {{name: guess_number, options: {{tolerant: true}}}}
agent: {{name: act, options: {{instructions: false}}}}
horizon: {{eval_max_turns: 4}}
episode: {{max_tokens_per_turn: 8, on_truncated_turn: play}}
data: {{max_prompt_length: 128, max_response_length: 256}}
engine: {{dtype: float32}}
evaluation: {{tasks: small_train, samples: 8}}
"""
LEARN = """# SFT of the tiny model, written by tests/bench/evolve.py.
defaults: [agent_sft, cpu_sft, _self_]
env: {{name: guess_number, train_tasks: small_train, eval_tasks: small_test, options: {{tolerant: true}}}}
agent: {{name: act, options: {{instructions: false}}}}
data: {{train_max_samples: 16, train_batch_size: 8, micro_batch_size_per_gpu: 8, max_length: 384}}
model: {{path: {folder}/model}}
engine: {{mixed_precision: {{param_dtype: float32}}}}
optim: {{lr: 1.0e-3}}
trainer: {{total_epochs: {epochs}}}
"""
PREFER = """# DPO of the tiny model, written by tests/bench/evolve.py.
defaults: [agent_dpo, cpu_sft, _self_]
env: {{name: guess_number, eval_tasks: small_test, options: {{tolerant: true}}}}
agent: {{name: act, options: {{instructions: false}}}}
preference: {{records: {folder}/rounds/round_1/explore, beta: 0.1, nll_coef: 1.0}}
data: {{train_batch_size: 8, micro_batch_size_per_gpu: 8, max_length: 384}}
engine: {{mixed_precision: {{param_dtype: float32}}}}
optim: {{lr: 3.0e-5}}
trainer: {{total_epochs: 2}}
"""


def demonstration_texts() -> list[str]:
    """Return the conversations of the base set, from which the tokenizer's merges are computed."""
    from verl_agent.agents.registry import make_agent
    from verl_agent.agents.settings import AgentSettings
    from verl_agent.envs.registry import make_env
    from verl_agent.envs.tasks import sample_tasks, select_tasks
    from verl_agent.rollout.oracle import demonstrate

    env = make_env("guess_number", OPTIONS)
    texts = []
    for item in sample_tasks(select_tasks(make_env("guess_number", OPTIONS), "small_train"), 16):
        agent = make_agent(AgentSettings("act", {"instructions": False}), env.action_format)
        for message in demonstrate(item, env.new_session(), agent).messages:
            texts.append(f"{message['role']}\n{message['content']}")
    return texts


def write_recipes(folder: Path, epochs: int) -> None:
    """Write the recipes, and the model if it does not exist yet."""
    if not (folder / "model/config.json").is_file():
        write_byte_model(folder / "model", demonstration_texts(), vocabulary=320)
    for name, text in (("evolve", EVOLVE), ("play", PLAY), ("learn", LEARN), ("prefer", PREFER)):
        (folder / f"{name}.yaml").write_text(text.format(folder=folder, epochs=epochs, rounds=ROUNDS))


def run(module: str, folder: Path, recipe: str, *overrides: str) -> None:
    """Run one command of this package; it resumes if it was interrupted."""
    config = ["--config-dir", str(folder), "--config-name", recipe]
    subprocess.run([sys.executable, "-m", f"verl_agent.commands.{module}", *config, *overrides], check=True)


def played(folder: Path, name: str, policy: Path) -> list[EpisodeRecord]:
    """Play eight episodes of each of the 51 items with a policy, and return the records."""
    run("evaluate", folder, "play", f"model.path={policy}", f"evaluation.output_dir={folder / name}")
    return list(read_records(folder / name / RECORDS))


def gain(before: list[EpisodeRecord], after: list[EpisodeRecord]) -> dict[str, str]:
    """Return the success of both, and the difference by item."""
    return {
        "before": str(summarize(before)[-1].success),
        "after": str(summarize(after)[-1].success),
        "difference": str(compare(before, after)[-1].difference),
    }


def main(arguments: list[str]) -> None:
    """Run all steps that have not ended, and print the results."""
    folder = Path(arguments[0] if arguments else "runs/bench_evolve").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    write_recipes(folder, epochs=20)
    run("evolve", folder, "evolve")
    rounds = [folder / f"rounds/round_{number}/learn" for number in range(ROUNDS + 1)]
    untrained = played(folder, "played/untrained", folder / "model")
    success = [played(folder, f"played/round_{number}", policy) for number, policy in enumerate(rounds)]
    tuned = folder / "dpo"
    run("dpo", folder, "prefer", f"model.path={resolve_checkpoint(rounds[0])}", f"trainer.default_local_dir={tuned}")
    margins = [values["train/margin"] for values in read_metrics(sorted(tuned.glob("metrics/*.jsonl"))).values()]
    report = {
        "SFT on the base set": gain(untrained, success[0]),
        "AgentEvol": [str(summarize(records)[-1].success) for records in success],
        "AgentEvol, last round and first": gain(success[0], success[-1]),
        "DPO": gain(success[0], played(folder, "played/dpo", tuned)) | {"margin_nats": [margins[0], margins[-1]]},
    }
    Console().print(report)
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
