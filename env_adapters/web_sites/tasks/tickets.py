"""Tasks of a developer that change tickets."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from env_adapters.web_sites.tasks.code import HOST, open_project, open_ticket, projects, ticket_words, tickets
from env_adapters.web_sites.tasks.templates import (
    TEST,
    TRAIN,
    TaskDraft,
    added,
    changed,
    expect_changes,
    neighbours,
    overwrite,
    stop,
    template,
)
from env_adapters.web_sites.world import GeneratedWorld
from env_adapters.web_sites.world.code import OWN_LOGIN, PRIORITIES, TYPES, Project, Ticket

SAVE, CREATE = 'click [button "Save changes"]', 'click [button "Create ticket"]'
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


@template(TRAIN, "gitlab", 'Close the ticket "{{ticket}}" of {{project}}.', changes=True)
def close_ticket(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    listed = [pair for pair in tickets(world, split, "close") if pair[1].status != "Closed"]
    for pair, other in neighbours(listed):
        another = "In Progress" if pair[1].status == "Open" else "Open"
        field = Field("status", "Closed", another, 'click [radio "{}"]')
        yield field_draft(pair, other, field, {})


@template(TEST, "gitlab", 'Assign the ticket "{{ticket}}" of {{project}} to {{login}}.', changes=True)
def assign_ticket(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    listed = [pair for pair in tickets(world, split, "assign") if not pair[1].assignee]
    for (project, one), other in neighbours(listed):
        place = len(one.title) % len(project.team)
        login, another = project.team[place], project.team[place - 1]
        field = Field("assignee", login, another, 'type [textbox "Assignee:"] [{}] [0]')
        draft = field_draft((project, one), other, field, {"login": login})
        opened = open_edit((project, one))
        several = [*opened, field.set(", ".join(project.team)), SAVE, stop()]
        corrected = [*opened, field.set(another), SAVE, *opened, *overwrite('textbox "Assignee:"', login), SAVE, stop()]
        yield replace(draft, wrong={**draft.wrong, "several people": several}, corrected=corrected)


@template(TEST, "gitlab", 'Set the priority of the ticket "{{ticket}}" of {{project}} to {{priority}}.', changes=True)
def set_priority(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for pair, other in neighbours(tickets(world, split, "priority")):
        wanted = PRIORITY_OF[pair[1].priority]
        another = next(name for name in PRIORITIES if name not in (wanted, pair[1].priority))
        yield field_draft(pair, other, Field("priority", wanted, another, 'click [radio "{}"]'), {"priority": wanted})


@dataclass(frozen=True, slots=True)
class Field:
    """Field of a ticket that a task sets.

    Attributes:
        name: column of the ticket.
        value: new value.
        another: wrong value.
        action: action that sets it, with `{}` for the value.
    """

    name: str
    value: str
    another: str
    action: str

    def set(self, value: str) -> str:
        """Return the action that sets a value."""
        return self.action.format(value)


TicketOf = tuple[Project, Ticket]


def open_edit(pair: TicketOf) -> list[str]:
    """Return the script that opens the form of a ticket from any page."""
    return [f"goto [{HOST}]", *open_ticket(*pair), 'click [link "Edit"]']


def field_draft(pair: TicketOf, other: TicketOf, field: Field, words: dict[str, str]) -> TaskDraft:
    """Return the draft of a task that sets a field of a ticket; `other` is another ticket."""
    project, ticket = pair
    right, opened = field.set(field.value), open_edit(pair)
    return TaskDraft(
        ticket.uuid[:10],
        {**ticket_words(project, ticket), **words},
        expect_changes(changed(f"{project.name} ticket", ticket.uuid, **{field.name: field.value})),
        [*opened[1:], right, SAVE, stop()],
        {
            "not saved": [*opened, right, stop()],
            "another value": [*opened, field.set(field.another), SAVE, stop()],
            "another ticket": [*open_edit(other), right, SAVE, stop()],
            "and another title": [*opened, 'type [textbox "Title:"] [Solved] [0]', right, SAVE, stop()],
            "and a comment": [*opened, right, write_comment(REMARKS[0]), SAVE, stop()],
        },
        [*opened, field.set(field.another), SAVE, *opened, right, SAVE, stop()],
    )


@template(
    TRAIN, "gitlab", 'Comment on the ticket "{{ticket}}" of {{project}} with exactly this text: {{text}}', changes=True
)
def comment_ticket(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for place, (pair, other) in enumerate(neighbours(tickets(world, split, "comment"))):
        said, another = (REMARKS[(place + step) % len(REMARKS)] for step in (0, 1))
        yield comment_draft(pair, other, said, another)


def comment_draft(pair: TicketOf, other: TicketOf, said: str, another: str) -> TaskDraft:
    """Return the draft of a task that comments on a ticket; `other` and `another` are a wrong ticket and text."""
    project, ticket = pair
    opened, right = open_edit(pair), write_comment(said)
    values = {"ticket": ticket.uuid, "login": OWN_LOGIN, "text": said, "mimetype": "text/plain"}
    return TaskDraft(
        ticket.uuid[:10],
        {**ticket_words(project, ticket), "text": said},
        expect_changes(added(f"{project.name} comment", **values)),
        [*opened[1:], right, SAVE, stop()],
        {
            "not saved": [*opened, right, stop()],
            "another text": [*opened, write_comment(another), SAVE, stop()],
            "a longer text": [*opened, write_comment(f"{said} {another}"), SAVE, stop()],
            "another ticket": [*open_edit(other), right, SAVE, stop()],
            "and another priority": [*opened, right, f'click [radio "{PRIORITY_OF[ticket.priority]}"]', SAVE, stop()],
            "twice": [*opened, right, SAVE, *opened, right, SAVE, stop()],
        },
        [*opened, write_comment(another), SAVE, *opened, right, SAVE, stop()],
    )


def write_comment(said: str) -> str:
    """Return the action that writes a comment into the form of a ticket."""
    return f'type [textbox "Comment:"] [{said}] [0]'


@template(
    TRAIN,
    "gitlab",
    'Create a ticket of type {{kind}} in {{project}} titled "{{title}}" with exactly this description: '
    "{{text}} Leave its other fields as they are.",
    changes=True,
)
def new_ticket(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    listed = projects(world, split)
    for place, ((title, said), (_, another)) in enumerate(neighbours(NEW)):
        project, elsewhere = listed[place % len(listed)], listed[(place + 1) % len(listed)]
        kind, wrong_kind = TYPES[place % 3], TYPES[(place + 1) % 3]
        values = {"title": title, "type": kind, "status": "Open", "priority": "Medium", "assignee": ""}
        values |= {"reporter": OWN_LOGIN, "text": said}
        script = create(project, title, kind, said)
        yield TaskDraft(
            f"{place}",
            {"kind": kind, "project": project.name, "title": title, "text": said},
            expect_changes(added(f"{project.name} ticket", **values)),
            [*script[1:], stop()],
            {
                "not created": [*script[:-1], stop()],
                "another type": [*create(project, title, wrong_kind, said), stop()],
                "another title": [*create(project, f"{title} now", kind, said), stop()],
                "another text": [*create(project, title, kind, another), stop()],
                "no text": [*script[:-2], CREATE, stop()],
                "another project": [*create(elsewhere, title, kind, said), stop()],
                "with a priority": [*script[:-1], 'click [radio "High"]', CREATE, stop()],
                "twice": [*script, *script, stop()],
            },
            [*create(project, title, wrong_kind, said), *script, stop()],
        )


def create(project: Project, title: str, kind: str, said: str) -> list[str]:
    """Return the script that creates a ticket from any page."""
    return [
        f"goto [{HOST}]",
        *open_project(project),
        'click [link "Tickets"]',
        'click [link "New ticket"]',
        f'type [textbox "Title:"] [{title}] [0]',
        f'click [radio "{kind}"]',
        f'type [textbox "Description:"] [{said}] [0]',
        CREATE,
    ]
