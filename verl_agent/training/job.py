"""Life of a training job: check, claim, room, work, report. Only what happens in each part differs by method.

A job that ended early is started again by the same command: it claims the same folder and does what is left.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from verl_agent.config.catalogue import may_change
from verl_agent.config.plan import Plan
from verl_agent.runs.best_checkpoint import keep_best
from verl_agent.runs.console import redirect_output, report_failure
from verl_agent.runs.folder import RunFolder, check_resume
from verl_agent.runs.identity import is_first_rank
from verl_agent.terminal import Console, say
from verl_agent.training.preflight.loggers import check_loggers


class Job(ABC):
    """One job: reinforcement learning, supervised training, DPO, or rounds of AgentEvol."""

    def run(self) -> None:
        """Do what is left of the job.

        Raises:
            ConfigError: a check before the start fails, or the work does.
        """
        with self.output():
            self.check()
            if self.claim():
                self.report(ended=True)
                return
            self.require_room()
            ended = False
            try:
                with self.explaining():
                    self.work()
                ended = True
            finally:
                self.report(ended)

    @contextmanager
    def output(self) -> Iterator[None]:
        """Direct the output of the job while the block runs."""
        yield

    @abstractmethod
    def check(self) -> None:
        """Check all that could fail later."""

    @abstractmethod
    def claim(self) -> bool:
        """Claim the folder, and return True if nothing is left to do."""

    @abstractmethod
    def require_room(self) -> None:
        """Check that the disk has room for what is left."""

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Show how to resume after a failure or an interruption of the block."""
        yield

    @abstractmethod
    def work(self) -> None:
        """Do the work."""

    @abstractmethod
    def report(self, ended: bool) -> None:
        """Show the results; `ended` is False after a failure."""


class TrainingJob(Job):
    """Job that trains one model, and resumes from the checkpoints in its folder.

    Attributes:
        command: name of its command in the catalogue of settings.
        model_key: key of the model that it trains.
        shown: the terminal; silent in all ranks of torchrun but the first.
        step: step to resume after; 0 for a new run.
        steps: last step; set by `check`, as are `settings`, which identify the run, and `checkpoint_gb`.
    """

    command: str
    model_key: ClassVar[str]
    console: Console
    shown: Console
    settings: Mapping[str, Any]
    checkpoint_gb: float
    step = steps = 0

    def __init__(self, plan: Plan) -> None:
        self.schedule, self.folder = plan.schedule, RunFolder.create(plan.schedule.folder)

    def tell(self, *parts: str | tuple[str, str]) -> None:
        """Print a line."""
        say(self.shown, *parts)

    @contextmanager
    def output(self) -> Iterator[None]:
        """Redirect the output of libraries to the log."""
        with redirect_output(self.folder.log) as self.console:
            self.shown = self.console if is_first_rank() else Console(quiet=True)
            yield

    def check(self) -> None:
        """Check the settings that all methods have."""
        check_loggers(self.schedule.loggers)
        check_resume(self.schedule, self.model_key)

    def claim(self) -> bool:
        """Claim the folder, and remove old checkpoints."""
        self.step, warning = self.folder.claim(self.settings, may_change(self.command), self.schedule.resume)
        if warning:
            self.tell((warning, "yellow"))
        if self.step and is_first_rank():
            keep_best(self.folder.root)
            self.folder.prune(self.schedule.keep)
        if done := self.is_done():
            self.tell(f"All {self.step} steps are done already: {self.folder.root}")
        return done

    def is_done(self) -> bool:
        """Return True if no step is left."""
        return self.step >= self.steps

    def require_room(self) -> None:
        """Check the disk, and that the ranks can read the checkpoint from which the run resumes."""
        if is_first_rank() and self.step < self.steps:  # the others would read while it removes
            self.folder.require_room(self.checkpoint_gb, self.schedule.keep)
        if self.step:
            self.tell("\n".join([*self.resharded(), f"resuming after step {self.step} of {self.steps}"]))

    @abstractmethod
    def resharded(self) -> list[str]:
        """Check that the ranks can read the last checkpoint; return lines about resharding."""

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Show the errors in the log, too."""
        with report_failure(self.folder, self.console):
            yield
