"""Distribution of prompts over the agent-loop workers."""

import ray
from tensordict import TensorDict
from typing_extensions import override
from verl.trainer.ppo.v1 import AgentLoopManagerTQ


class EpisodeLoopManager(AgentLoopManagerTQ):
    """verl's `AgentLoopManagerTQ` (trainer/ppo/v1/agent_loop_tq.py), which gives all workers equally many prompts.

    verl cuts every batch anew, so the few prompts with which DAPO replaces groups always go to the first workers. Of
    ten prompts and eight workers, five workers get two and three get none. verl creates this class through
    `rollout.agent.agent_loop_manager_class`.
    """

    _next_worker = 0

    @override
    def generate_sequences(self, prompts: TensorDict) -> None:
        workers = self.agent_loop_workers
        sizes = shares(len(prompts), len(workers), self._next_worker)
        self._next_worker = (self._next_worker + len(prompts)) % len(workers)
        chosen = [(worker, size) for worker, size in zip(workers, sizes, strict=True) if size]
        parts = prompts.split([size for _, size in chosen])
        ray.get([worker.generate_sequences.remote(part) for (worker, _), part in zip(chosen, parts, strict=True)])


def shares(prompts: int, workers: int, first: int) -> list[int]:
    """Return the number of prompts for each worker; those that do not divide go to the workers from `first` on."""
    each, more = divmod(prompts, workers)
    return [each + ((worker - first) % workers < more) for worker in range(workers)]
