"""Tasks of a developer on the code host."""

from collections.abc import Iterator, Sequence

from env_adapters.web_sites.tasks.templates import (
    TEST,
    TRAIN,
    TaskDraft,
    number,
    question_draft,
    rank,
    side,
    template,
    text_part,
    visit,
)
from env_adapters.web_sites.world import GeneratedWorld
from env_adapters.web_sites.world.code import Project, Ticket

HOST = "__GITLAB__"
ALL_TICKETS = ('click [link "Tickets"]', 'click [link "All tickets"]')
TEST_PROJECTS = ("papermill", "trailmap")


def projects(world: GeneratedWorld, split: str) -> Sequence[Project]:
    """Return the projects of a split."""
    return [one for one in world.code.projects if (one.name in TEST_PROJECTS) == (split == TEST)]


def tickets(world: GeneratedWorld, split: str, salt: str = "") -> Sequence[tuple[Project, Ticket]]:
    """Return the tickets of a split with their projects, shuffled."""
    found = [(project, ticket) for project in projects(world, split) for ticket in project.tickets]
    chosen = [pair for pair in found if split == TEST or side(pair[1].uuid) == split]
    return sorted(chosen, key=lambda pair: rank(salt + pair[1].uuid))


def open_project(project: Project) -> list[str]:
    """Return the script that opens a project from the host's first page."""
    return [f'click [link "{project.name}.fossil"]']


def open_ticket(project: Project, ticket: Ticket) -> list[str]:
    """Return the script that opens a ticket from the host's first page."""
    return [*open_project(project), *ALL_TICKETS, f'click [link "{ticket.uuid[:10]}"]']


def ticket_words(project: Project, ticket: Ticket) -> dict[str, str]:
    """Return the values of an intent about a ticket."""
    return {"project": project.name, "ticket": ticket.title}


@template(
    TRAIN,
    "gitlab",
    'What is the status of the ticket "{{ticket}}" of {{project}}, and on which day was it created? '
    "Answer as in: Paused, 2025-01-31",
)
def ticket_status(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for project, one in tickets(world, split):
        steps = [*open_project(project), *ALL_TICKETS]
        said = (text_part(one.status), text_part(f"{one.moment:%Y-%m-%d}"))
        yield question_draft(one.uuid[:10], ticket_words(project, one), steps, *said)


@template(TEST, "gitlab", 'Who is the ticket "{{ticket}}" of {{project}} assigned to? Answer with the login only.')
def ticket_assignee(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for project, one in tickets(world, split):
        if one.assignee:
            yield question_draft(
                one.uuid[:10], ticket_words(project, one), open_ticket(project, one), text_part(one.assignee)
            )


@template(
    TRAIN,
    "gitlab",
    'Who reported the ticket "{{ticket}}" of {{project}}, and what is its priority? Answer as in: login, Urgent',
)
def ticket_reporter(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for project, one in tickets(world, split, "reporter"):
        said = (text_part(one.reporter), text_part(one.priority))
        yield question_draft(one.uuid[:10], ticket_words(project, one), open_ticket(project, one), *said)


@template(
    TRAIN,
    "gitlab",
    "How many tickets of {{project}} are closed, and what is the title of the latest of them? Answer as "
    "in: 12, Wrong colours",
)
def closed_count(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in projects(world, split):
        closed = [ticket for ticket in one.tickets if ticket.status == "Closed"]
        latest = max(closed, key=lambda ticket: ticket.moment)
        steps = [*open_project(one), 'click [link "Tickets"]', 'click [link "Closed tickets"]']
        yield question_draft(one.name, {"project": one.name}, steps, number(len(closed)), text_part(latest.title))


@template(
    TRAIN,
    "gitlab",
    "Which version of Python does {{project}} need at least, and which port does it open? Answer as in: 2.7, 80",
)
def python_version(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in projects(world, split):
        said = (text_part(one.facts["python"]), number(one.facts["port"]))
        yield question_draft(one.name, {"project": one.name}, wiki(one, "Installation"), *said)


@template(
    TEST,
    "gitlab",
    "On which day of the week does the team of {{project}} meet, and who pays for the work? Answer in the"
    " words of the wiki, as in: Sunday, a bank",
)
def team_meeting(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in projects(world, split):
        said = (text_part(one.facts["meeting"]), text_part(one.facts["funder"]))
        yield question_draft(one.name, {"project": one.name}, wiki(one, "Team"), *said)


def wiki(project: Project, title: str) -> list[str]:
    """Return the script that opens a wiki page from the host's first page."""
    return [*open_project(project), 'click [link "Wiki"]', f'click [link "{title}"]']


@template(TRAIN, "gitlab", 'Who made the check-in "{{message}}" in {{project}}? Answer with the login only.')
def checkin_author(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    found = [(project, one) for project in projects(world, split) for one in project.checkins[1:]]
    for project, one in sorted(found, key=lambda pair: rank(pair[0].name + pair[1].message)):
        steps = [*open_project(project), 'click [link "Timeline"]']
        words = {"message": one.message, "project": project.name}
        yield question_draft(f"{project.name} {one.message}", words, steps, text_part(one.login))


@template(TEST, "gitlab", "What does the check-in tagged {{tag}} in {{project}} say? Answer with its message only.")
def tagged(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for project in projects(world, split):
        for tag in project.tags[:3]:
            steps = [*open_project(project), 'click [link "Tags"]', f'click [link "{tag.name}"]']
            words = {"tag": tag.name, "project": project.name}
            yield question_draft(
                f"{project.name} {tag.name}", words, steps, text_part(project.checkins[tag.checkin].message)
            )


@template(TRAIN, "gitlab", 'Open the ticket "{{ticket}}" of {{project}}.')
def show_ticket(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for project, one in tickets(world, split, "show"):
        paths = ("tktview/", "tktview?name=", "info/")
        urls = [f"{HOST}/{project.name}/{path}{name}" for path in paths for name in (one.uuid[:10], one.uuid)]
        yield visit(one.uuid[:10], ticket_words(project, one), open_ticket(project, one), *urls)
