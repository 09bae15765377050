"""Findings on an opened run, with links to the episodes that show them."""

from functools import partial

from nicegui import ui

from verl_agent.results.findings import find_problems
from verl_agent.results.findings_steps import RunHistory, first_line
from verl_agent.results.findings_trends import Finding
from verl_agent.types import StopReason
from verl_agent.viewer.conditions import LAST_ATTEMPT
from verl_agent.viewer.links import link_to, run_path
from verl_agent.viewer.queries import needed_turns
from verl_agent.viewer.run_data import cached_run, read_logs
from verl_agent.viewer.state import OpenedSource
from verl_agent.visible import make_visible

MOST_ERRORS = 1000
"""Environment errors, the latest ones, among which the commonest is searched."""


def find_in_run(opened: OpenedSource) -> list[Finding]:
    """Return the findings on a run, the likeliest cause first."""
    return opened.cached("findings", lambda: find_problems(read_history(opened)))


def read_history(opened: OpenedSource) -> RunHistory:
    """Return the history of a run from its index and its metrics log."""
    run, db = cached_run(opened), opened.index.db
    errors: dict[str, int] = {}
    for (text,) in db.execute(
        f"SELECT error FROM episodes WHERE purpose = 'train' AND stop = ? AND {LAST_ATTEMPT} ORDER BY id DESC LIMIT ?",
        (StopReason.ENV_ERROR, MOST_ERRORS),
    ):
        errors[first_line(text)] = errors.get(first_line(text), 0) + 1
    copies = dict(map(tuple, db.execute("SELECT step, share FROM copies WHERE purpose = 'train'")))
    log = opened.cached("log", partial(read_logs, opened))
    return RunHistory(run.steps, run.uniform, needed_turns(opened.index), copies, errors, log)


def show_findings(opened: OpenedSource, findings: list[Finding]) -> None:
    """Show each finding with a link to the episodes or the groups that it is about."""
    if not findings and any(at.purpose == "train" for at in cached_run(opened).steps):
        ui.label("No problem was found.").classes("muted")
    for finding in findings:
        with ui.element("div").classes("warn w-full"):
            ui.label(make_visible(finding.text)).classes("inline mr-2")
            name, rest = ("groups", "/group") if finding.groups else ("episodes", "/episodes")
            ui.link(name, link_to(run_path(opened, rest), finding.parameters))
