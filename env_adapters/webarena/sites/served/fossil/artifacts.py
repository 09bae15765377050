"""Fossil's records, written as its file format asks: check-ins, tags, tickets and wiki pages.

The format: https://fossil-scm.org/home/doc/trunk/www/fileformat.wiki. A repository is reconstructed from such records,
so everything in it has the date and the author that the world says.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from hashlib import md5, sha3_256

from env_adapters.webarena.sites.world.code import Project, Ticket


def records(project: Project) -> Iterator[bytes]:
    """Everything that a repository of `project` holds."""
    parent, files = "", dict[str, str]()
    names: list[str] = []
    for checkin in project.checkins:
        for name, text in checkin.files.items():
            files[name] = digest(text.encode())
            yield text.encode()
        cards = [f"C {quote(checkin.message)}", f"D {stamp(checkin.moment)}"]
        cards += [f"F {quote(name)} {files[name]}" for name in sorted(files)]
        cards += [f"P {parent}"] if parent else []
        cards += [] if parent else ["T *branch * trunk", "T *sym-trunk *"]
        record = sealed([*cards, f"U {checkin.login}"])
        yield record
        parent = digest(record)
        names.append(parent)
    for tag in project.tags:
        yield sealed([f"D {stamp(tag.moment)}", f"T +sym-{tag.name} {names[tag.checkin]}", f"U {project.maintainer}"])
    for ticket in project.tickets:
        yield from ticket_records(ticket)
    for title, text in project.wiki.items():
        moment = project.checkins[0].moment + timedelta(hours=2)
        cards = [f"D {stamp(moment)}", f"L {quote(title)}", "N text/x-markdown", f"U {project.maintainer}"]
        yield sealed([*cards, f"W {len(text.encode())}\n{text}"])


def ticket_records(ticket: Ticket) -> Iterator[bytes]:
    """How a ticket was opened, and each remark."""
    fields = {
        "assignee": ticket.assignee,
        "comment": ticket.text,
        "priority": ticket.priority,
        "reporter": ticket.reporter,
        "status": ticket.status,
        "title": ticket.title,
        "type": ticket.kind,
    }
    yield change(ticket.uuid, ticket.moment, ticket.reporter, fields)
    for number, (login, remark) in enumerate(ticket.remarks, start=1):
        said = {"icomment": remark, "login": login, "mimetype": "text/plain", "username": login}
        yield change(ticket.uuid, ticket.moment + timedelta(hours=5 * number), login, said)


def change(uuid: str, moment: datetime, login: str, fields: dict[str, str]) -> bytes:
    """A change of a ticket."""
    cards = [f"J {name} {quote(text)}" for name, text in sorted(fields.items()) if text]
    return sealed([f"D {stamp(moment)}", *cards, f"K {uuid}", f"U {login}"])


def sealed(cards: Iterable[str]) -> bytes:
    """A record of cards in their order, with its check sum."""
    text = "".join(f"{card}\n" for card in cards).encode()
    return text + f"Z {md5(text).hexdigest()}\n".encode()


def digest(content: bytes) -> str:
    """The name that Fossil gives to some content."""
    return sha3_256(content).hexdigest()


def quote(text: str) -> str:
    """A value in a card."""
    return text.replace("\\", "\\\\").replace(" ", "\\s").replace("\n", "\\n")


def stamp(moment: datetime) -> str:
    """A moment in a card."""
    return f"{moment.isoformat(timespec='seconds')}.000"
