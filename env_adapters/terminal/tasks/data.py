"""Tasks that ask to correct a data file."""

import json
import random
from collections.abc import Mapping

from env_adapters.terminal.grading import FileCheck, TerminalTask

NAMES = (
    "anvil", "brush", "chain", "drill", "easel", "flask", "gauge", "hinge", "iron", "jack", "knob", "lamp", "mast",
    "nail",
)  # fmt: skip
TOWNS = ("Lima", "Oslo", "Pune", "Quito", "Riga", "Sofia", "Turin", "Umea")
MARKS = ("NULL", "VOID", "TEST", "DUMMY", "BAD", "NONE", "DRAFT", "OLD", "SPAM", "EMPTY")


def make(size: str, number: int, held_out: bool, draw: random.Random) -> TerminalTask:
    """Return a task; marks and least payments of held-out tasks follow from their numbers and are theirs alone."""
    if size == "medium":
        return dates(number, "date" if held_out else ("order", "count")[number % 2], draw)
    return {"small": marked_rows, "large": merged}[size](number, draw)


def marked_rows(number: int, draw: random.Random) -> TerminalTask:
    """Ask to remove the rows with a mark."""
    mark, file = MARKS[number % len(MARKS)], f"{draw.choice(NAMES)}{number}.csv"
    rows = [[str(index), draw.choice(NAMES), str(draw.randrange(1000))] for index in range(1, 16)]
    for index in draw.sample(range(15), 4):
        rows[index][1] = mark
    return TerminalTask(
        f"Delete every line of {file} that has the word {mark}.",
        {file: csv_text([["id", "name", "count"], *rows])},
        (f"sed -i /{mark}/d {file}",),
        (FileCheck(file, [["id", "name", "count"], *(row for row in rows if mark not in row)], "csv"),),
    )


def csv_text(rows: list[list[str]]) -> str:
    """Return rows as a CSV file."""
    return "".join(",".join(row) + "\n" for row in rows)


SORTED: Mapping[str, tuple[str, str]] = {
    "order": ("by order, as numbers", "int(row[0])"),
    "count": ("by count and then by order, as numbers", "(int(row[3]), int(row[0]))"),
    "date": ("by date, the latest first, and then by order", "(-int(row[1].replace('-', '')), int(row[0]))"),
}
"""Text and key of each way to sort."""


def dates(number: int, by: str, draw: random.Random) -> TerminalTask:
    """Ask to convert dates, to remove repeated rows and to sort."""
    file, rows, right = f"orders{number}.csv", [], []
    criterion, key = SORTED[by]
    for order in draw.sample(range(1000, 9999), 40):
        day, month, year = draw.randrange(1, 29), draw.randrange(1, 13), draw.randrange(2020, 2030)
        rest = [draw.choice(NAMES), str(draw.randrange(1, 500))]
        rows.append([str(order), f"{day:02}/{month:02}/{year}", *rest])
        right.append([str(order), f"{year}-{month:02}-{day:02}", *rest])
    right.sort(key=eval(f"lambda row: {key}"))
    rows += draw.sample(rows, 8)
    draw.shuffle(rows)
    header = ["order", "date", "name", "count"]
    program = f"""
import csv
header, *rows = csv.reader(open('{file}'))
for row in rows:
    row[1] = '-'.join(reversed(row[1].split('/')))
rows = sorted({{tuple(row) for row in rows}}, key=lambda row: {key})
with open('{file}', 'w') as file:
    file.writelines(','.join(row) + '\\n' for row in [header, *rows])
""".strip()
    return TerminalTask(
        f"Correct {file}: write dates as YYYY-MM-DD instead of DD/MM/YYYY, keep one of repeated lines, and sort the "
        f"lines {criterion}. Keep the first line.",
        {file: csv_text([header, *rows])},
        (f"head -4 {file}", f"python3 <<'END'\n{program}\nEND", f"head -4 {file}"),
        (FileCheck(file, [header, *right], "csv"),),
    )


def merged(number: int, draw: random.Random) -> TerminalTask:
    """Ask to bring a CSV file and a broken JSON file together, with totals of each town."""
    least = 50 * (1 + number % 5)
    ids = draw.sample(range(100, 999), 40)
    people = [{"id": one, "town": draw.choice(TOWNS), "active": draw.random() < 0.7} for one in ids]
    payments = [[str(draw.choice(ids)), f"{draw.randrange(1, 40_000) / 100:.2f}"] for _ in range(200)]
    wrong = [["", "12.00"], ["7", "5.10"], [str(ids[0]), "n/a"], [str(ids[1]), ""]]
    totals: dict[str, list[int]] = {}
    for who, amount in payments:
        person = next(one for one in people if one["id"] == int(who))
        cents = round(float(amount) * 100)
        if person["active"] and cents >= least * 100:
            totals.setdefault(str(person["town"]), []).append(cents)
    expected = {town: {"payments": len(all_), "total": sum(all_) / 100} for town, all_ in totals.items()}
    rows = payments + wrong
    draw.shuffle(rows)
    broken = json.dumps(people, indent=1).replace("}\n]", "},\n]")  # a comma too many
    program = f"""
import csv, json, re
text = re.sub(r',\\s*]', ']', open('people.json').read())
people = {{one['id']: one for one in json.loads(text)}}
result = {{}}
for row in csv.DictReader(open('payments.csv')):
    try:
        person, amount = people[int(row['person'])], float(row['amount'])
    except (ValueError, KeyError):
        continue
    if person['active'] and amount >= {least}:
        town = result.setdefault(person['town'], {{'payments': 0, 'total': 0}})
        town['payments'] += 1
        town['total'] = round(town['total'] + amount, 2)
json.dump(result, open('towns.json', 'w'))
""".strip()
    return TerminalTask(
        "people.json has a comma too many. payments.csv has lines without a known person or without a number, which "
        f"do not count. Write towns.json: for each town with payments of at least {least} by active people, an object "
        "with `payments`, their number, and `total`, their sum rounded to two digits, as "
        '{"Lima": {"payments": 2, "total": 300.5}}.',
        {"people.json": broken, "payments.csv": csv_text([["person", "amount"], *rows])},
        ("head -c 200 people.json; head -3 payments.csv", f"python3 <<'END'\n{program}\nEND", "head -c 300 towns.json"),
        (FileCheck("towns.json", expected, "json"),),
    )
