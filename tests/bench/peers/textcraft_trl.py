"""TextCraft on TRL's GRPOTrainer, as a user of TRL writes it: a `rollout_func` with an environment mask.

It runs in a virtual environment that has TRL, from the root of the checkout:
`python -m tests.bench.peers.textcraft_trl MODEL FOLDER --tasks 16 --samples 4 --steps 4`. It writes `steps.json` into
the folder: seconds by phase, episodes and solved ones of each step.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from verl_agent.platform.patches import keep_unpacked_weights
from verl_agent.platform.vllm_version import answer_vllm_version

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; TRL has no setting for a CPU
answer_vllm_version()  # before vLLM is imported
keep_unpacked_weights()

from datasets import Dataset  # noqa: E402
from transformers import AutoTokenizer, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]  # noqa: E402
from vllm.model_executor.model_loader.utils import process_weights_after_loading  # noqa: E402

from env_adapters.textcraft.adapter import describe_task, rules  # noqa: E402
from env_adapters.textcraft.game import CraftingGame  # noqa: E402
from env_adapters.textcraft.recipes import recipe_book  # noqa: E402

MAX_TURNS, REPLY_TOKENS, PROMPT_TOKENS, RESPONSE_TOKENS = 8, 32, 160, 320
GOALS = Path("recipes/textcraft/cpu_train.txt")


class Played:
    """Tokens and reward of one episode."""

    def __init__(self, goal: str, prompt_ids: list[int]) -> None:
        self.game = CraftingGame(recipe_book(), goal)
        self.prompt_ids, self.ids, self.mask, self.log_probs = prompt_ids, [], [], []  # type: ignore[var-annotated]
        self.reward = 0.0

    def add(self, ids: list[int], log_probs: list[float] | None = None) -> None:
        """Add tokens; those of the environment have no log-probs."""
        self.ids += ids
        self.mask += [int(log_probs is not None)] * len(ids)
        self.log_probs += [0.0] * len(ids) if log_probs is None else log_probs


def play(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """Play one episode for each prompt, all of them turn by turn; TRL's `rollout_func`."""
    tokenizer, steps = trainer.processing_class, trainer.measured
    began = time.perf_counter()
    episodes = []
    for prompt in prompts:  # other columns of the data set are not passed, so the prompt identifies the goal
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
        episodes.append(Played(trainer.goals[prompt[-1]["content"]], ids))
    running = list(episodes)
    for turn in range(MAX_TURNS):
        contexts = [episode.prompt_ids + episode.ids for episode in running]
        _, replies, log_probs, _ = trainer.vllm_generation.generate(contexts, images=None, num_generations=1)
        still = []
        for episode, reply, values in zip(running, replies, log_probs, strict=True):
            episode.add(list(reply), [value[0] for value in values])
            if reply[-1] != tokenizer.eos_token_id:  # truncated
                continue
            action = tokenizer.decode(reply, skip_special_tokens=True).rpartition("Action:")[2].strip()
            result = episode.game.play(action.partition("\n")[0])
            episode.reward += result.reward
            text = f"\n<|im_start|>user\n{result.observation}<|im_end|>\n<|im_start|>assistant\n"
            observation = tokenizer(text, add_special_tokens=False)["input_ids"]
            fits = len(episode.ids) + len(observation) + REPLY_TOKENS <= RESPONSE_TOKENS
            if fits and not result.terminated and turn + 1 < MAX_TURNS:
                episode.add(observation)
                still.append(episode)
        running = still
        if not running:
            break
    solved = sum(episode.reward > 0 for episode in episodes)
    steps.append({"rollout_s": time.perf_counter() - began, "episodes": len(episodes), "solved": solved})
    return {
        "prompt_ids": [episode.prompt_ids for episode in episodes],
        "completion_ids": [episode.ids for episode in episodes],
        "logprobs": [episode.log_probs for episode in episodes],
        "env_mask": [episode.mask for episode in episodes],
        "env_reward": [episode.reward for episode in episodes],
    }


def reward_of(completions: list[Any], env_reward: list[float], **_: Any) -> list[float]:
    """Return the rewards of the environment; TRL's reward function."""
    return env_reward


def pack_after_transfer(trainer: Any) -> None:
    """Make vLLM's CPU layers pack the weights again after each transfer; TRL loads them only."""
    generation = trainer.vllm_generation
    transfer = generation.sync_weights

    def sync_weights() -> None:
        began = time.perf_counter()
        transfer()
        runner = generation.llm.llm_engine.model_executor.driver_worker.model_runner
        process_weights_after_loading(runner.model, runner.model_config, runner.device)
        trainer.transfer_s = time.perf_counter() - began

    generation.sync_weights = sync_weights


class StepTimes(TrainerCallback):  # type: ignore[misc]
    """Adds the durations of update and step to the measured steps."""

    def __init__(self, trainer: Any, file: Path) -> None:
        self.trainer, self.file, self.began = trainer, file, 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        step, seconds = self.trainer.measured[-1], time.perf_counter() - self.began
        step |= {"weights_s": self.trainer.transfer_s, "step_s": seconds}
        step["update_s"] = seconds - step["rollout_s"] - step["weights_s"]
        self.trainer.transfer_s = 0.0
        self.file.write_text(json.dumps(self.trainer.measured), encoding="utf-8")


def main() -> None:
    """Train some steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    for name in ("tasks", "samples", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    rows, goals = [], {}
    for goal in GOALS.read_text(encoding="utf-8").splitlines():
        if goal and not goal.startswith("#"):
            task = describe_task(goal, 0)
            goals[task] = goal
            rows.append({"prompt": [{"role": "system", "content": rules("short")}, {"role": "user", "content": task}]})
    config = GRPOConfig(
        str(options.folder),
        use_cpu=True,
        bf16=True,
        learning_rate=2e-5,
        lr_scheduler_type="constant",
        weight_decay=0.01,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=options.tasks * options.samples // 4,
        num_generations=options.samples,
        max_steps=options.steps,
        max_completion_length=RESPONSE_TOKENS,
        temperature=1.0,
        beta=0.0,
        loss_type="bnpo",  # mean over the tokens of a mini-batch
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        seed=1,
        disable_tqdm=True,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_max_model_length=PROMPT_TOKENS + RESPONSE_TOKENS,
        vllm_importance_sampling_correction=False,  # needs a further pass over the batch
        generation_kwargs={"max_tokens": REPLY_TOKENS},
        model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
    )
    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    data = Dataset.from_list(rows)
    trainer = GRPOTrainer(options.model, reward_of, config, data, processing_class=tokenizer, rollout_func=play)
    trainer.goals, trainer.measured, trainer.transfer_s = goals, [], 0.0
    pack_after_transfer(trainer)
    trainer.add_callback(StepTimes(trainer, options.folder / "steps.json"))
    trainer.train()


if __name__ == "__main__":
    main()
