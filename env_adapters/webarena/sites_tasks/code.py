"""Tasks of a developer on the code host."""

from collections.abc import Iterator, Sequence

from env_adapters.webarena.sites.world import GeneratedWorld
from env_adapters.webarena.sites.world.code import Project, Ticket
from env_adapters.webarena.sites_tasks.templates import (
    TEST,
    TRAIN,
    Draft,
    all_of,
    exactly,
    page,
    rank,
    shows,
    side,
    state,
    stop,
    template,
)

HOST = "__GITLAB__"
TEST_PROJECTS = ("papermill", "trailmap")
PRIORITY_OF = {"Low": "High", "Medium": "High", "High": "Low"}
REMARKS = (
    "I can work on this next week.",
    "This also happens with the newest release.",
    "A workaround is described in the wiki.",
    "Please attach the full log.",
)
NEW = (
    ("Export as plain text", "A file without any markup would be enough."),
    ("Start page does not load on slow networks", "It waits for a minute and stays empty."),
    ("Explain the settings in the manual", "Half of them are not mentioned at all."),
    ("Add a dark colour scheme", "The white background is hard on the eyes at night."),
    ("Keep the window size", "It should open as it was closed."),
    ("Typing errors in the help text", "There are three on the first page."),
)


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
    listed = ['click [link "Tickets"]', 'click [link "All tickets"]']
    return [*open_project(project), *listed, f'click [link "{ticket.uuid[:10]}"]']


def at(project: Project, ticket: Ticket) -> str:
    """Return the URL of a ticket."""
    return f"{HOST}/{project.name}{ticket.path}"


def words_of(project: Project, ticket: Ticket) -> dict[str, str]:
    """Return the values of an intent about a ticket."""
    return {"project": project.name, "ticket": ticket.title}


def field(name: str) -> str:
    """Return the locator of a field on the page of a ticket."""
    return f"document.querySelector('#tkt-{name}').outerText"


@template(TRAIN, "gitlab", 'What is the status of the ticket "{{ticket}}" of {{project}}? Answer with the status only.')
def ticket_status(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the status of a ticket."""
    for project, one in tickets(world, split):
        wrong = "Open" if one.status != "Open" else "Closed"
        script = [*open_ticket(project, one), stop(one.status)]
        every = all_of(ticket.status for ticket in project.tickets)
        yield Draft(one.uuid[:10], words_of(project, one), exactly(one.status), script, [[stop(wrong)], every])


@template(TEST, "gitlab", 'Who is the ticket "{{ticket}}" of {{project}} assigned to? Answer with the login only.')
def ticket_assignee(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the assignee of a ticket."""
    for project, one in tickets(world, split):
        if one.assignee:
            script = [*open_ticket(project, one), stop(one.assignee)]
            other = next(login for login in project.team if login not in (one.assignee, one.reporter))
            wrong = [[stop(other)], all_of(project.team)]
            yield Draft(one.uuid[:10], words_of(project, one), exactly(one.assignee), script, wrong)


@template(
    TRAIN,
    "gitlab",
    'Who reported the ticket "{{ticket}}" of {{project}}, and what is its priority? Answer as in: login, Medium',
)
def ticket_reporter(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the reporter of a ticket."""
    for project, one in tickets(world, split, "reporter"):
        said, wrong = f"{one.reporter}, {one.priority}", f"{one.reporter}, {PRIORITY_OF[one.priority]}"
        script = [*open_ticket(project, one), stop(said)]
        every = all_of([*project.team, *PRIORITY_OF])
        yield Draft(one.uuid[:10], words_of(project, one), exactly(said), script, [[stop(wrong)], every])


@template(TRAIN, "gitlab", "How many tickets of {{project}} are closed? Answer with the number only.")
def closed_count(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the number of closed tickets."""
    for one in projects(world, split):
        count = sum(ticket.status == "Closed" for ticket in one.tickets)
        script = [*open_project(one), 'click [link "Tickets"]', 'click [link "Closed tickets"]', stop(f"{count}")]
        yield Draft(one.name, {"project": one.name}, exactly(f"{count}"), script, [[stop(f"{count + 1}")]])


@template(TRAIN, "gitlab", "Which version of Python does {{project}} need at least? Answer with the number only.")
def python_version(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for a fact on a wiki page."""
    for one in projects(world, split):
        script = [*wiki(one, "Installation"), stop(one.facts["python"])]
        wrong = [[stop("3.7")], all_of(project.facts["python"] for project in world.code.projects)]
        yield Draft(one.name, {"project": one.name}, exactly(one.facts["python"]), script, wrong)


@template(
    TEST,
    "gitlab",
    "On which day of the week does the team of {{project}} meet, and who pays for the work? Answer in the words of the "
    "wiki, as in: Sunday, a bank",
)
def team_meeting(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for a fact on another wiki page."""
    for one in projects(world, split):
        said = f"{one.facts['meeting']}, {one.facts['funder']}"
        script = [*wiki(one, "Team"), stop(said)]
        every = all_of(project.facts[name] for project in world.code.projects for name in ("meeting", "funder"))
        wrong = [[stop(f"Sunday, {one.facts['funder']}")], every]
        yield Draft(one.name, {"project": one.name}, exactly(said), script, wrong)


def wiki(project: Project, title: str) -> list[str]:
    """Return the script that opens a wiki page from the host's first page."""
    return [*open_project(project), 'click [link "Wiki"]', f'click [link "{title}"]']


@template(TRAIN, "gitlab", 'Who made the check-in "{{message}}" in {{project}}? Answer with the login only.')
def checkin_author(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the author of a check-in."""
    found = [(project, one) for project in projects(world, split) for one in project.checkins[1:]]
    for project, one in sorted(found, key=lambda pair: rank(pair[0].name + pair[1].message)):
        script = [*open_project(project), 'click [link "Timeline"]', stop(one.login)]
        wrong = [[stop(next(login for login in project.team if login != one.login))], all_of(project.team)]
        words = {"message": one.message, "project": project.name}
        yield Draft(f"{project.name} {one.message}", words, exactly(one.login), script, wrong)


@template(TEST, "gitlab", "What does the check-in tagged {{tag}} in {{project}} say? Answer with its message only.")
def tagged(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the message of a tagged check-in."""
    for project in projects(world, split):
        for tag in project.tags[:3]:
            message = project.checkins[tag.checkin].message
            script = [*open_project(project), 'click [link "Tags"]', f'click [link "{tag.name}"]', stop(message)]
            other = project.checkins[tag.checkin - 1].message
            wrong = [[stop(other)], all_of(one.message for one in project.checkins)]
            words = {"tag": tag.name, "project": project.name}
            yield Draft(f"{project.name} {tag.name}", words, exactly(message), script, wrong)


@template(TRAIN, "gitlab", 'Open the ticket "{{ticket}}" of {{project}}.')
def show_ticket(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to open the page of a ticket."""
    for project, one in tickets(world, split, "show"):
        script = [*open_ticket(project, one), stop()]
        yield Draft(
            one.uuid[:10], words_of(project, one), page(at(project, one)), script, [[stop()], [*script[:-2], stop()]]
        )


@template(TRAIN, "gitlab", 'Close the ticket "{{ticket}}" of {{project}}.', changes=True)
def close_ticket(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to close a ticket."""
    for project, one in tickets(world, split, "close"):
        if one.status != "Closed":
            yield edit(project, one, ['click [radio "Closed"]'], {"status": "Closed"}, {})


@template(TEST, "gitlab", 'Assign the ticket "{{ticket}}" of {{project}} to {{login}}.', changes=True)
def assign_ticket(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to assign a developer to an unassigned ticket."""
    for project, one in tickets(world, split, "assign"):
        if not one.assignee:
            login = project.team[len(one.title) % len(project.team)]
            yield edit(
                project, one, [f'type [textbox "Assignee:"] [{login}] [0]'], {"assignee": login}, {"login": login}
            )


@template(TEST, "gitlab", 'Set the priority of the ticket "{{ticket}}" of {{project}} to {{priority}}.', changes=True)
def set_priority(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to set the priority of a ticket."""
    for project, one in tickets(world, split, "priority"):
        wanted = PRIORITY_OF[one.priority]
        yield edit(project, one, [f'click [radio "{wanted}"]'], {"priority": wanted}, {"priority": wanted})


@template(TRAIN, "gitlab", 'Comment on the ticket "{{ticket}}" of {{project}}: {{text}}', changes=True)
def comment_ticket(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to add a remark to a ticket."""
    for place, (project, one) in enumerate(tickets(world, split, "comment")):
        text = REMARKS[place % len(REMARKS)]
        yield edit(project, one, [f'type [textbox "Comment:"] [{text}] [0]'], {"comments": text}, {"text": text})


def edit(project: Project, ticket: Ticket, steps: list[str], expected: dict[str, str], words: dict[str, str]) -> Draft:
    """Return the draft of a task that edits a ticket."""
    opened = [*open_ticket(project, ticket), 'click [link "Edit"]', *steps]
    evaluation = state(*(shows(at(project, ticket), field(name), text) for name, text in expected.items()))
    script = [*opened, 'click [button "Save changes"]', stop()]
    return Draft(
        ticket.uuid[:10], {**words_of(project, ticket), **words}, evaluation, script, [[stop()], [*opened, stop()]]
    )


@template(TRAIN, "gitlab", 'Create a ticket of type {{kind}} in {{project}} titled "{{title}}": {{text}}', changes=True)
def new_ticket(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to create a ticket."""
    for place, (title, text) in enumerate(NEW):
        listed = projects(world, split)
        project, kind = listed[place % len(listed)], ("Bug", "Feature", "Documentation")[place % 3]
        script = [
            *open_project(project),
            'click [link "Tickets"]',
            'click [link "New ticket"]',
            f'type [textbox "Title:"] [{title}] [0]',
            f'click [radio "{kind}"]',
            f'type [textbox "Description:"] [{text}] [0]',
        ]
        made = shows(f"{HOST}/{project.name}/rptview/1", "document.querySelector('table.report').outerText", title)
        words = {"kind": kind, "project": project.name, "title": title, "text": text}
        yield Draft(
            f"{place}",
            words,
            state(made),
            [*script, 'click [button "Create ticket"]', stop()],
            [[stop()], [*script, stop()]],
        )
