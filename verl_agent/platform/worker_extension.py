"""What vLLM's CPU worker needs to take new weights from verl; loaded inside the engine's process."""

from typing import Any

import torch

from verl_agent.platform.patches import keep_unpacked_weights
from verl_agent.platform.run_scoped_worker import RunScopedWorkerExtension

keep_unpacked_weights()


class CpuWorkerExtension(RunScopedWorkerExtension):
    """verl's worker extension on the CPU."""

    def update_weights_from_ipc(self, *args: Any, **kwargs: Any) -> Any:
        """Receive weights into the device that has no index."""
        self.device = torch.device("cpu")
        return super().update_weights_from_ipc(*args, **kwargs)

    def _update_weights(self, weights: list[tuple[str, torch.Tensor]], *args: Any, **kwargs: Any) -> Any:
        """Copy the weights out of the shared buffer first.

        On the CPU `tensor.to(device)` copies nothing, and the receiver could not close shared memory
        that a view still points into (verl 0.9.1, bucketed_weight_transfer.py:296-297).
        """
        return super()._update_weights([(name, tensor.clone()) for name, tensor in weights], *args, **kwargs)
