"""The public check of an environment: play an adapter as training does, and report violations of its contract."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_agent.envs.action_format import ToolFormat
from verl_agent.envs.base import EnvAdapter, read_success_reward
from verl_agent.envs.hosts.process import unpicklable
from verl_agent.envs.testing import contract, task_checks, tool_checks
from verl_agent.envs.testing.harness import Harness, configure
from verl_agent.envs.testing.resources import check_leftovers, check_session_memory
from verl_agent.envs.testing.success import search_success
from verl_agent.envs.testing.violation import ContractViolation, Violation, boundary
from verl_agent.types import TaskItem

ACTIONS_KEPT = "actions survive their format"


@dataclass(slots=True)
class Report:
    """Result of `check_adapter`.

    Attributes:
        passed: checks without a violation, with their measurements.
        notes: limits of the environment, and checks that did not run, with the reason.
        violations: violations, one for each cause; empty if the adapter keeps the contract.
        on_line: receives each line of the report as soon as it is known.
    """

    passed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    on_line: Callable[[str], None] = lambda line: None

    def __str__(self) -> str:
        """Return one line for each check, note and violation."""
        lines = [f"ok    {check}" for check in self.passed]
        lines += [f"note  {note}" for note in self.notes]
        return "\n".join(lines + [f"FAIL  {violation}" for violation in self.violations])

    def run(self, check: str, function: Callable[[], str | None]) -> bool:
        """Run one check and record its result, with the measurement that it returns.

        Returns:
            True if it passed.
        """
        try:
            measured = function()
        except ContractViolation as error:
            known = next((violation for violation in self.violations if violation.cause == error.cause), None)
            if known is not None:
                known.also.append(check)
                self.on_line(f"FAIL  {check}: same cause as in {known.check!r}.")
            else:
                self.violations.append(Violation(check, error.call, error.got, error.advice, error.cause))
                self.on_line(f"FAIL  {self.violations[-1]}")
            return False
        self.passed.append(f"{check}: {measured}" if measured else check)
        self.on_line(f"ok    {self.passed[-1]}")
        return True

    def note(self, text: str) -> None:
        """Record a limit, or a check that did not run."""
        self.notes.append(text)
        self.on_line(f"note  {text}")


def check_adapter(  # noqa: PLR0913 - one parameter for each way in which environments differ
    adapter: type[EnvAdapter],
    options: Mapping[str, Any] | None = None,
    items: int = 4,
    timeout_s: float = 60.0,
    replay_exact: bool | None = None,
    name: str | None = None,
    budget_s: float = 10.0,
    on_line: Callable[[str], None] = lambda line: None,
) -> Report:
    """Check an adapter against the contract of `EnvAdapter`.

    Args:
        adapter: class of the environment.
        options: keyword arguments of its constructor, as in `env.options`.
        items: number of tasks of each split to play, >= 1.
        timeout_s: most seconds of one call.
        replay_exact: the same actions must give the same texts. False compares only rewards. None is the adapter's
            `deterministic`.
        name: registered name of the environment; None if it is not registered yet.
        budget_s: seconds after which a check skips further items; at least one item is played.
        on_line: receives each line of the report as soon as it is known.

    Raises:
        ConfigError: the adapter rejects the options or the machine.
    """
    report = Report(on_line=on_line)
    envs: list[EnvAdapter] = []
    listed: dict[str, list[TaskItem]] = {}

    def list_tasks() -> None:
        envs.append(configure(adapter, options or {}))
        with boundary("success_reward", "Set it to the return from which a task counts as solved."):
            read_success_reward(envs[0])
        listed.update(task_checks.list_all(envs[0]))

    if not report.run("tasks are listed", list_tasks):
        return report
    env = envs[0]
    report.run("items carry their environment's name", lambda: task_checks.check_names(listed, name))
    report.run("ids are unique and splits apart", lambda: task_checks.check_ids(listed))
    report.run("tasks are the same twice", lambda: task_checks.check_repeat(env, listed))
    chosen = {item.id: item for split in listed.values() for item in spread(split, items)}
    exact = env.deterministic if replay_exact is None else replay_exact
    harness = Harness(env, list(chosen.values()), timeout_s, budget_s, exact)
    try:
        report.run(ACTIONS_KEPT, lambda: check_format(report, env))
        if env.action_format.tools:
            report.run("tools are described", lambda: tool_checks.check_descriptions(env))
        check_sessions(report, harness)
        if not report.violations:
            check_processes(report, harness, listed)
    finally:
        harness.finish()
    for check, count in harness.skipped.items():
        report.note(f"{check}: {count} more were skipped after {budget_s:g} s.")
    return report


def check_format(report: Report, env: EnvAdapter) -> None:
    """Check the action format, and note that it cannot hold line breaks."""
    if not contract.check_action_format(env):
        report.note(
            f"{type(env.action_format).__name__} holds actions of one line: step() receives only the first line of an "
            "action. For code, SQL or scripts choose FenceFormat or TagFormat."
        )


def check_sessions(report: Report, harness: Harness) -> None:
    """Run the checks that play sessions in this process."""
    if not report.run("sessions begin and close", lambda: contract.check_lifecycle(harness)):
        return
    solvable: list[TaskItem] = []
    if not report.run("demonstrations are lists of actions", lambda: find_solvable(report, harness, solvable)):
        return
    if harness.env.action_format.tools:
        report.run("demonstrations are calls of tools", lambda: tool_checks.check_demonstrated(harness))
    if isinstance(harness.env.action_format, ToolFormat):
        report.run("tools answer every call", lambda: tool_checks.check_calls(harness))
    counted: list[int] = []
    report.run("bad actions are answered", lambda: counted.append(contract.check_bad_actions(harness)))
    if counted == [0]:
        report.note('no bad action was counted: answer what is not possible with info={"invalid_action": 1.0}.')
    if report.run("episodes replay", lambda: contract.check_replay(harness)):
        report.run("sessions do not mix", lambda: contract.check_isolation(harness))
        report.run(contract.CONCURRENT, lambda: contract.check_concurrency(harness))
        if not harness.replay_exact:
            report.note("texts of replayed episodes were not compared, only rewards: `deterministic` is False.")
    else:
        report.note("sessions are not compared with each other until episodes replay.")
    if solvable:
        report.run(contract.SOLVED, lambda: contract.check_demonstrations(harness, solvable))
    if not harness.solved and not report.violations:
        report.run("other episodes keep the contract", lambda: search_success(harness))
    if harness.replay_exact and not report.violations:
        report.run(contract.LUCK, lambda: contract.check_luck(harness))
    if not harness.solved:
        report.note(
            "no success was reached, by a demonstration, an oracle or random actions: the values that the environment "
            "returns at success are not checked. Add demonstration() or oracle()."
        )
    report.run("sessions leave nothing behind", lambda: check_leftovers(harness))


def find_solvable(report: Report, harness: Harness, solvable: list[TaskItem]) -> None:
    """Add the items with a demonstration to `solvable`, and note how many have none."""
    without = 0
    for item in harness.within_budget("demonstrations are lists of actions", harness.items):
        if harness.demonstration(item) is None:
            without += 1
        else:
            solvable.append(item)
    if without:
        report.note(f"{without} of {without + len(solvable)} items have no demonstration.")


def check_processes(report: Report, harness: Harness, listed: task_checks.Listed) -> None:
    """Run the checks in other processes."""
    if reason := unpicklable(harness.env):
        report.note(f"not checked in other processes, where training plays: {reason}. Define it in a module.")
        return
    report.run("tasks are the same in another process", lambda: task_checks.check_elsewhere(harness.env, listed))
    report.run("a host process plays the same", lambda: contract.check_host(harness))
    if not report.violations:
        report.run("a full host fits into its memory", lambda: check_session_memory(harness))


def spread(items: Sequence[TaskItem], count: int) -> Sequence[TaskItem]:
    """Return at most `count` items at even distances."""
    count = min(count, len(items))
    return [items[index * len(items) // count] for index in range(count)]
