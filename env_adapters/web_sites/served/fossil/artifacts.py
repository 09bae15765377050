"""Records in Fossil's file format: check-ins, tags, tickets and wiki pages.

The format: https://fossil-scm.org/home/doc/trunk/www/fileformat.wiki. A repository is reconstructed from these records,
so everything in it has the generated date and author.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from hashlib import md5, sha3_256

from env_adapters.web_sites.world.code import Project, Ticket


def records(project: Project) -> Iterator[bytes]:
    """Yield all records of the repository of `project`."""
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
    """Yield the record that opens a ticket, and one record for each remark."""
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
        fields = {"icomment": remark, "login": login, "mimetype": "text/plain", "username": login}
        yield change(ticket.uuid, ticket.moment + timedelta(hours=5 * number), login, fields)


def change(uuid: str, moment: datetime, login: str, fields: dict[str, str]) -> bytes:
    """Return the record of a change of a ticket."""
    cards = [f"J {name} {quote(text)}" for name, text in sorted(fields.items()) if text]
    return sealed([f"D {stamp(moment)}", *cards, f"K {uuid}", f"U {login}"])


def sealed(cards: Iterable[str]) -> bytes:
    """Return a record of the cards, in this order, with its checksum."""
    text = "".join(f"{card}\n" for card in cards).encode()
    return text + f"Z {md5(text).hexdigest()}\n".encode()


def digest(content: bytes) -> str:
    """Return Fossil's hash of some content."""
    return sha3_256(content).hexdigest()


def quote(text: str) -> str:
    """Return a text in the encoding of cards."""
    return text.replace("\\", "\\\\").replace(" ", "\\s").replace("\n", "\\n")


def stamp(moment: datetime) -> str:
    """Return a time in the format of cards."""
    return f"{moment.isoformat(timespec='seconds')}.000"
