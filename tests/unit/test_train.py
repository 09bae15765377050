"""Following a run of reinforcement learning by the files in its folder."""

import io
import json

from omegaconf import OmegaConf
from rich.console import Console

from verl_agent.runs.folder import RunFolder
from verl_agent.training.follow import follow_run


def saved(root, step: int) -> None:
    """Write a checkpoint as verl does: its folder, then the tracker that marks it as complete."""
    (root / f"global_step_{step}" / "actor").mkdir(parents=True)
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))


def test_each_checkpoint_prunes_older_ones_and_plots_the_curves(tmp_path):
    """Two checkpoints are of an earlier start; verl itself would keep them."""
    for step in (1, 2):
        saved(tmp_path, step)
    folder = RunFolder.at(tmp_path)
    folder.metrics.parent.mkdir()
    folder.log.parent.mkdir()
    folder.log.touch()
    trainer = OmegaConf.create({"total_training_steps": 4, "max_actor_ckpt_to_keep": 2})
    with follow_run(folder, trainer, Console(file=io.StringIO())):
        assert not folder.curves.exists()
        saved(tmp_path, 3)
        (tmp_path / "global_step_4" / "actor").mkdir(parents=True)  # is being written
        line = {"step": 3, "data": {"episode/reward_mean": 0.5}}
        folder.metrics.write_text(json.dumps(line) + "\n")
    assert sorted(path.name for path in tmp_path.glob("global_step_*")) == [f"global_step_{n}" for n in (2, 3, 4)]
    assert folder.curves.is_file()
