"""The contract of an environment as a tool for its author: try an adapter out and say what to change."""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.testing import contract, task_checks
from verl_agent.envs.testing.harness import Harness, configure
from verl_agent.envs.testing.resources import check_leftovers, check_memory
from verl_agent.envs.testing.violation import ContractViolation
from verl_agent.types import TaskItem


@dataclass(frozen=True, slots=True)
class Violation:
    """One way in which an adapter breaks the contract.

    Attributes:
        check: what was looked at.
        call: what was called.
        got: what came back.
        advice: what to change.
    """

    check: str
    call: str
    got: str
    advice: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.check}: {self.call} {self.got}. {self.advice}"


@dataclass(slots=True)
class Report:
    """What `check_adapter` saw.

    Attributes:
        passed: checks that found nothing, with what they measured.
        notes: what could not be checked, and why.
        findings: what to change, at most one from each check; empty if the adapter keeps the contract.
        say: told each line when it is known.
    """

    passed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    findings: list[Violation] = field(default_factory=list)
    say: Callable[[str], None] = lambda line: None

    def __str__(self) -> str:
        """One line for each check."""
        lines = [f"ok    {check}" for check in self.passed]
        lines += [f"note  {note}" for note in self.notes]
        return "\n".join(lines + [f"FAIL  {finding}" for finding in self.findings])

    def run(self, check: str, what: Callable[[], str | None]) -> None:
        """Run one check and record how it went, with what it says of itself."""
        try:
            measured = what()
        except ContractViolation as breach:
            self.findings.append(Violation(check, breach.call, breach.got, breach.advice))
            self.say(f"FAIL  {self.findings[-1]}")
        else:
            self.passed.append(f"{check}: {measured}" if measured else check)
            self.say(f"ok    {self.passed[-1]}")

    def note(self, text: str) -> None:
        """Record what could not be checked."""
        self.notes.append(text)
        self.say(f"note  {text}")


def check_adapter(  # noqa: PLR0913 - one for each thing that differs between environments
    adapter: type[EnvAdapter],
    options: Mapping[str, Any] | None = None,
    items: int = 4,
    timeout_s: float = 60.0,
    replay_exact: bool = True,
    name: str | None = None,
    budget_s: float = 10.0,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Hold an adapter against the contract of `EnvAdapter`.

    Args:
        adapter: the class.
        options: keyword arguments of each session, as in `env.options`.
        items: tasks of each split to play, >= 1.
        timeout_s: seconds that one call may take.
        replay_exact: whether the same actions must give the same texts; False compares only rewards, for
            a world that also moves by itself.
        name: the name under which it is registered; None if it is not yet.
        budget_s: seconds after which a check leaves further items out; at least one is played.
        say: told each line of the report when it is known.
    """
    report, keywords = Report(say=say), options or {}
    envs: list[EnvAdapter] = []
    listed: dict[str, list[TaskItem]] = {}

    def list_tasks() -> None:
        envs.append(configure(adapter, keywords))
        listed.update(task_checks.list_all(envs[0]))

    report.run("tasks are listed", list_tasks)
    if report.findings:
        return report
    env = envs[0]
    report.run("items carry their environment's name", lambda: task_checks.check_names(listed, name))
    report.run("ids are unique and splits apart", lambda: task_checks.check_ids(listed))
    report.run("items are JSON", lambda: task_checks.check_json(listed))
    report.run("tasks are the same twice", lambda: task_checks.check_repeat(env, listed))
    chosen = {item.id: item for split in listed.values() for item in spread(split, items)}
    trial = Harness(env, list(chosen.values()), timeout_s, budget_s, replay_exact)
    try:
        check_sessions(report, trial)
        if not report.findings:
            check_processes(report, trial, listed)
    finally:
        trial.finish()
    for check, count in trial.left_out.items():
        report.note(f"{check}: {count} more were left out after {budget_s:g} s.")
    return report


def check_sessions(report: Report, trial: Harness) -> None:
    """What can be seen in this process."""
    report.run("sessions begin and close", lambda: contract.check_life(trial))
    if report.findings:
        return
    solvable: list[TaskItem] = []
    report.run("an oracle answers", lambda: check_oracle(report, trial, solvable))
    if report.findings:
        return
    counted: list[int] = []
    report.run("bad actions are answered", lambda: counted.append(contract.check_bad_actions(trial)))
    if counted == [0]:
        report.note('no bad action was counted: answer what cannot be done with info={"invalid_action": 1.0}.')
    report.run("episodes replay", lambda: contract.check_replay(trial))
    report.run("sessions do not mix", lambda: contract.check_isolation(trial))
    report.run(contract.CROWDED, lambda: contract.check_crowd(trial))
    if solvable:
        report.run(contract.SOLVED, lambda: contract.check_demonstrations(trial, solvable))
    report.run("sessions leave nothing behind", lambda: check_leftovers(trial))


def check_oracle(report: Report, trial: Harness, solvable: list[TaskItem]) -> None:
    """The oracle gives moves, or there is none; notes what has none, and adds what has one to `solvable`."""
    without = 0
    for item in trial.within_budget("an oracle answers", trial.items):
        if trial.oracle(item) is None:
            without += 1
        else:
            solvable.append(item)
    if without:
        report.note(f"{without} of {without + len(solvable)} items have no oracle to be solved with.")


def check_processes(report: Report, trial: Harness, listed: task_checks.Listed) -> None:
    """What other processes see."""
    if why := unsendable(trial):
        report.note(f"not tried in other processes, where a training plays: {why}.")
        return
    report.run(
        "tasks are the same in another process",
        lambda: task_checks.check_elsewhere(trial.env, listed),
    )
    report.run("a host process plays the same", lambda: contract.check_host(trial))
    if not report.findings:
        report.run("a full host fits into its memory", lambda: check_memory(trial))


def unsendable(trial: Harness) -> str:
    """Why other processes cannot have the class and its options, or "" if they can."""
    if type(trial.env).__module__ == "__main__":
        return "the class is defined in the script that runs, move it to a module"
    try:
        pickle.dumps(trial.env)
    except Exception as error:  # whatever a class that is not at the top level of a module, or an option, raises
        return str(error).rstrip(".")
    return ""


def spread(items: Sequence[TaskItem], count: int) -> Sequence[TaskItem]:
    """At most `count` items, evenly from the whole list."""
    count = min(count, len(items))
    return [items[place * len(items) // count] for place in range(count)]
