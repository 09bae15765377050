"""Three rounds of AgentEvol with a model that begins knowing nothing: `python -m tests.bench.evolve [FOLDER]`.

A llama of half a million parameters, with a tokenizer of its own, guesses numbers from 1 to at most 12 in four turns.
The base set are 16 binary searches; each round plays the 51 training items, keeps what was solved and trains the random
model anew. Goes on where it was stopped.
"""

import os
import sys
from pathlib import Path

from tests.models import write_byte_model

OPTIONS = {"tolerant": True}
EVOLVE = """# AgentEvol with a tiny model, written by tests/bench/evolve.py.
defaults: [agent_evolve, _self_]
evolve:
  explore: [{{recipe: {folder}/play.yaml, tasks: small_train, samples: 8}}]
  learn: {folder}/learn.yaml
  weight: task
  output_dir: {folder}/rounds
"""
PLAY = """# How the tiny model plays, written by tests/bench/evolve.py.
defaults: [agent_eval, cpu_eval, _self_]
env: {{name: guess_number, options: {{tolerant: true}}}}
agent: {{name: act, options: {{instructions: false}}}}
horizon: {{eval_max_turns: 4}}
episode: {{max_tokens_per_turn: 8, cut_turn: play}}
data: {{max_prompt_length: 128, max_response_length: 256}}
engine: {{dtype: float32}}
evaluation: {{tasks: small_test, samples: 8}}
"""
LEARN = """# How the tiny model learns, written by tests/bench/evolve.py.
defaults: [agent_sft, cpu_sft, _self_]
env: {{name: guess_number, train_tasks: small_train, eval_tasks: small_test, options: {{tolerant: true}}}}
agent: {{name: act, options: {{instructions: false}}}}
data: {{train_max_samples: 16, train_batch_size: 8, micro_batch_size_per_gpu: 8, max_length: 384}}
model: {{path: {folder}/model}}
engine: {{mixed_precision: {{param_dtype: float32}}}}
optim: {{lr: 1.0e-3}}
trainer: {{total_epochs: {epochs}}}
"""


def demonstration_texts() -> list[str]:
    """What the tokenizer learns its merges from: the conversations of the base set."""
    from verl_agent.agents.registry import new_agent
    from verl_agent.config.schema import AgentSection
    from verl_agent.envs.registry import load_adapter
    from verl_agent.envs.tasks import draw, select_tasks
    from verl_agent.rollout.oracle import demonstrate

    adapter = load_adapter("guess_number", OPTIONS)
    texts = []
    for item in draw(select_tasks("guess_number", "small_train", OPTIONS), 16):
        agent = new_agent(AgentSection("act", {"instructions": False}), adapter.form)
        for message in demonstrate(item, adapter(**OPTIONS), agent).messages:
            texts.append(f"{message['role']}\n{message['content']}")
    return texts


def write_recipes(folder: Path, epochs: int) -> None:
    """The model and the three recipes, if they are not there yet."""
    if not (folder / "model/config.json").is_file():
        write_byte_model(folder / "model", demonstration_texts(), vocabulary=320)
    for name, text in (("evolve", EVOLVE), ("play", PLAY), ("learn", LEARN)):
        (folder / f"{name}.yaml").write_text(text.format(folder=folder, epochs=epochs))


def main(arguments: list[str]) -> None:
    """Write what is needed and become `verl-agent evolve`."""
    folder = Path(arguments[0] if arguments else "runs/bench_evolve").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    write_recipes(folder, epochs=20)
    place = ["--config-dir", str(folder), "--config-name", "evolve"]
    os.execv(sys.executable, [sys.executable, "-m", "verl_agent.evolve", *place])


if __name__ == "__main__":
    main(sys.argv[1:])
