"""The code host's projects: files, check-ins, tags, tickets and wiki pages, made from a seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from random import Random

from env_adapters.web_sites.world.code_words import BUGS, COMMITS, DOCS, FEATURES, LICENSES, REMARKS, THEMES, Theme
from env_adapters.web_sites.world.people import Resident, people, someone

DEVELOPERS = 14
OWN_LOGIN = "rowan"
"""The developer that tasks are done as."""
TICKETS = 22
CHECKINS = 20
TAG_EVERY = 5
"""Check-ins from one tag to the next."""
LAST_MOMENT = datetime(2025, 12, 15, 18)
STATUSES = ("Open", "In Progress", "Closed")
PRIORITIES = ("Low", "Medium", "High")
TYPES = ("Bug", "Feature", "Documentation")


@dataclass(frozen=True, slots=True)
class Checkin:
    """A commit on trunk: what it says, and the text of each file that it changes."""

    login: str
    moment: datetime
    message: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Tag:
    """A name for a check-in, such as `v1.2`."""

    name: str
    checkin: int
    moment: datetime


@dataclass(frozen=True, slots=True)
class Ticket:
    """A ticket as it is now.

    Attributes:
        uuid: 40 hexadecimal digits.
        remarks: login and text of each comment.
    """

    uuid: str
    title: str
    text: str
    kind: str
    status: str
    priority: str
    reporter: str
    assignee: str
    moment: datetime
    remarks: Sequence[tuple[str, str]]

    @property
    def path(self) -> str:
        """Its address below the project's."""
        return f"/tktview/{self.uuid[:10]}"


@dataclass(frozen=True, slots=True)
class Project:
    """A repository with all that belongs to it.

    Attributes:
        team: logins of its developers.
        wiki: text of each page in Markdown.
    """

    name: str
    about: str
    license: str
    maintainer: str
    team: Sequence[str]
    checkins: Sequence[Checkin]
    tags: Sequence[Tag]
    tickets: Sequence[Ticket]
    wiki: Mapping[str, str]
    facts: Mapping[str, str]


class CodeWorld:
    """Everything on the code host. The same seed gives the same host."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def random(self, part: str) -> Random:
        """The generator of one part, which no other part disturbs."""
        return Random(f"{self.seed}:code:{part}")

    @cached_property
    def people(self) -> Mapping[str, Resident]:
        """Developers by login; the own one first."""
        own = someone(self.random("own"), "Rowan", "Ashby")
        others = people(self.random("developers"), DEVELOPERS - 1, [own])
        found = {OWN_LOGIN: own}
        for person in others:
            login = person.first.lower()
            found[login if login not in found else f"{login}.{person.last.lower()}"] = person
        return found

    @cached_property
    def projects(self) -> Sequence[Project]:
        """All projects, by name."""
        return [self.project(name, theme) for name, theme in sorted(THEMES.items())]

    def project(self, name: str, theme: Theme) -> Project:
        random = self.random(name)
        team = random.sample(list(self.people)[1:], 5)
        facts = {
            "license": random.choice(LICENSES),
            "python": f"3.{random.randint(8, 13)}",
            "port": str(random.randint(4000, 9000)),
            "meeting": random.choice(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")),
            "funder": random.choice(("the city library", "a grant", "donations", "its members")),
        }
        checkins = make_checkins(random, name, theme, team, facts)
        tags = [
            Tag(f"v1.{place // TAG_EVERY}", place, checkins[place].moment + timedelta(hours=1))
            for place in range(TAG_EVERY - 1, len(checkins), TAG_EVERY)
        ]
        tickets = make_tickets(random, theme, team)
        wiki = {
            "Installation": f"# Installation\n\n{name} needs Python {facts['python']} or newer. "
            f"Run `pip install {name}`, then open port {facts['port']}.\n",
            "Team": f"# Team\n\nThe maintainer is {team[0]}. The team meets every {facts['meeting']}. "
            f"The work is paid by {facts['funder']}.\n",
            "Roadmap": "# Roadmap\n\n" + "".join(f"* {ticket.title}\n" for ticket in tickets[:4]),
        }
        return Project(name, theme.about, facts["license"], team[0], team, checkins, tags, tickets, wiki, facts)


def make_checkins(
    random: Random, name: str, theme: Theme, team: Sequence[str], facts: Mapping[str, str]
) -> list[Checkin]:
    """The check-ins of a project, the oldest first; no two say the same."""
    moment = LAST_MOMENT - timedelta(days=random.randint(300, 360))
    readme = f"# {name}\n\n{theme.about}\n\nMaintainer: {team[0]}\n\nLicense: {facts['license']}\n"
    files = {"README.md": readme, "LICENSE": f"{facts['license']}\n", "VERSION": "1.0\n"}
    files |= {f"src/{module}.py": module_text(random, module, 1) for module in theme.modules}
    found = [Checkin(team[0], moment, "First files", files)]
    said: set[str] = set()
    sizes = dict.fromkeys(theme.modules, 1)
    while len(found) < CHECKINS:
        module, thing = random.choice(theme.modules), random.choice(theme.objects)
        message = random.choice(COMMITS).format(module=module, thing=thing)
        if message in said:
            continue
        said.add(message)
        moment += timedelta(days=random.randint(4, 14), minutes=random.randrange(600))
        sizes[module] += 1
        changed = {f"src/{module}.py": module_text(random, module, sizes[module])}
        found.append(Checkin(random.choice(team), moment, message, changed))
    return found


def module_text(random: Random, module: str, functions: int) -> str:
    """A small Python module."""
    text = f'"""The {module}."""\n\nLIMIT = {random.randint(10, 990)}\n'
    for number in range(functions):
        text += f"\n\ndef step_{number}(value):\n    return min(value * {random.randint(2, 9)}, LIMIT)\n"
    return text


def make_tickets(random: Random, theme: Theme, team: Sequence[str]) -> list[Ticket]:
    """The tickets of a project, the oldest first, no two of one title."""
    kinds = [("Bug", text) for text in BUGS] + [("Feature", text) for text in FEATURES]
    kinds += [("Documentation", text) for text in DOCS]
    choices = [
        (kind, text, module, thing) for kind, text in kinds for module in theme.modules for thing in theme.objects
    ]
    moments = sorted(LAST_MOMENT - timedelta(minutes=random.randrange(60 * 24 * 280)) for _ in range(TICKETS))
    found: list[Ticket] = []
    for (kind, (title, text), module, thing), moment in zip(random.sample(choices, TICKETS), moments, strict=True):
        words = {"module": module, "thing": thing}
        reporter = random.choice(team)
        assignee = random.choice([*team, ""])
        remarks = [
            (random.choice(team), remark)
            for remark in random.sample(REMARKS, random.choices((0, 1, 2, 3), (4, 3, 2, 1))[0])
        ]
        status = random.choices(STATUSES, (5, 2, 4))[0]
        heading = title.format(**words)
        found.append(
            Ticket(
                "".join(random.choice("0123456789abcdef") for _ in range(40)),
                heading[0].upper() + heading[1:],
                text.format(**words),
                kind,
                status,
                random.choices(PRIORITIES, (3, 4, 2))[0],
                reporter,
                assignee,
                moment,
                remarks,
            )
        )
    return found
