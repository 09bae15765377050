"""Create the repositories of the generated projects: `python -m env_adapters.web_sites.served.code_seed SEED`.

Needs nothing but the program `fossil`, which the variable `SITES_FOSSIL` names. Repositories are reconstructed from
records in Fossil's file format (https://fossil-scm.org/home/doc/trunk/www/fileformat.wiki), so that everything in them
has the generated date and author.
"""

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from hashlib import md5, sha3_256
from pathlib import Path

from env_adapters.web_sites.logins import login_secret, project_code
from env_adapters.web_sites.served.fossil import pages
from env_adapters.web_sites.world import world
from env_adapters.web_sites.world.code import OWN_LOGIN, CodeWorld, Project, Ticket
from env_adapters.web_sites.world.people import Resident


def records(project: Project) -> Iterator[bytes]:
    """Yield all records of the repository of `project`."""
    parent, files = "", dict[str, str]()
    names: list[str] = []
    for checkin in project.checkins:
        for name, text in checkin.files.items():
            files[name] = fossil_hash(text.encode())
            yield text.encode()
        cards = [f"C {quote(checkin.message)}", f"D {card_time(checkin.moment)}"]
        cards += [f"F {quote(name)} {files[name]}" for name in sorted(files)]
        cards += [f"P {parent}"] if parent else []
        cards += [] if parent else ["T *branch * trunk", "T *sym-trunk *"]
        record = sealed([*cards, f"U {checkin.login}"])
        yield record
        parent = fossil_hash(record)
        names.append(parent)
    for tag in project.tags:
        yield sealed(
            [f"D {card_time(tag.moment)}", f"T +sym-{tag.name} {names[tag.checkin]}", f"U {project.maintainer}"]
        )
    for ticket in project.tickets:
        yield from ticket_records(ticket)
    for title, text in project.wiki.items():
        moment = project.checkins[0].moment + timedelta(hours=2)
        cards = [f"D {card_time(moment)}", f"L {quote(title)}", "N text/x-markdown", f"U {project.maintainer}"]
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
    return sealed([f"D {card_time(moment)}", *cards, f"K {uuid}", f"U {login}"])


def sealed(cards: Iterable[str]) -> bytes:
    """Return a record of the cards, in this order, with its checksum."""
    text = "".join(f"{card}\n" for card in cards).encode()
    return text + f"Z {md5(text).hexdigest()}\n".encode()


def fossil_hash(content: bytes) -> str:
    """Return Fossil's hash of some content."""
    return sha3_256(content).hexdigest()


def quote(text: str) -> str:
    """Return a text in the encoding of cards."""
    return text.replace("\\", "\\\\").replace(" ", "\\s").replace("\n", "\\n")


def card_time(moment: datetime) -> str:
    """Return a time in the format of cards."""
    return f"{moment.isoformat(timespec='seconds')}.000"


FOSSIL_VARIABLE = "SITES_FOSSIL"
PASSWORD = "Password123"
DEVELOPER = "cfhijkmnorwz"
"""Capabilities of developers: read and write check-ins, tickets and wiki pages."""
VISITOR = "hjorz"
"""Capabilities of users who are not logged in: read."""


def main(seed: int) -> None:
    """Create all repositories of a seed."""
    folder = Path(os.environ["SITES_SEED_FOLDER"]) / "code"
    folder.mkdir(parents=True)
    code = world(seed).code
    for project in code.projects:
        make_repository(folder / f"{project.name}.fossil", project, code)


def make_repository(file: Path, project: Project, code: CodeWorld) -> None:
    """Create one repository."""
    with tempfile.TemporaryDirectory() as temporary:
        for record in records(project):
            Path(temporary, fossil_hash(record)).write_bytes(record)
        fossil("reconstruct", str(file), temporary)
    settings = {
        "project-code": project_code(project.name),
        "server-code": project_code(f"server {project.name}"),
        "project-name": project.name,
        "project-description": project.about,
        "index-page": "/doc/trunk/README.md",
        "ticket-table": pages.TABLE,
        "ticket-common": pages.COMMON,
        "ticket-newpage": pages.NEW,
        "ticket-editpage": pages.EDIT,
        "ticket-viewpage": pages.VIEW,
        "mainmenu": pages.MENU,
        "footer": pages.FOOTER,
        "backoffice-disable": "1",
        "email-send-method": "off",
        "auto-hyperlink": "0",
        "search-ci": "1",
        "search-doc": "1",
        "search-tkt": "1",
        "search-wiki": "1",
        "doc-glob": "*.md",
    }
    with sqlite3.connect(file) as database:
        database.executemany("REPLACE INTO config(name, value, mtime) VALUES(?, ?, 0)", list(settings.items()))
        database.execute("DELETE FROM reportfmt")
        database.executemany(
            "INSERT INTO reportfmt(owner, title, mtime, cols, sqlcode) VALUES(?, ?, 0, '', ?)",
            [(project.maintainer, title, pages.ticket_report(rule)) for title, rule in pages.REPORTS.items()],
        )
        add_users(database, project, code)
    database.close()
    fossil("rebuild", "--vacuum", str(file))


def add_users(database: sqlite3.Connection, project: Project, code: CodeWorld) -> None:
    """Add the developers; the agent's account is logged in from the start."""
    database.execute("DELETE FROM user")
    rows: list[tuple[str, str, str, str]] = [("nobody", "", VISITOR, ""), ("anonymous", "", VISITOR, "")]
    rows += [("developer", "", DEVELOPER, ""), ("reader", "", VISITOR, "")]
    rows += [(login, PASSWORD, DEVELOPER, contact(person)) for login, person in code.people.items()]
    database.executemany("INSERT INTO user(login, pw, cap, info, mtime) VALUES(?, ?, ?, ?, 0)", rows)
    database.execute(
        "UPDATE user SET cookie = ?, cexpire = julianday('2099-01-01') WHERE login = ?",
        (login_secret(project.name), OWN_LOGIN),
    )


def contact(person: Resident) -> str:
    """Return the contact line of a developer."""
    return f"{person.name} <{person.email}>"


def fossil(*arguments: str) -> None:
    """Run Fossil."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "USER": "setup", "FOSSIL_HOME": home, "HOME": home}
        program = os.environ.get(FOSSIL_VARIABLE, "fossil")
        done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"fossil {arguments[0]} failed: {(done.stderr or done.stdout).strip()[-1000:]}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
