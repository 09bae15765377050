"""Tasks that ask for something in log files."""

import random

from env_adapters.terminal.grading import FileCheck, TerminalTask

WORDS = ("FATAL", "PANIC", "TIMEOUT", "REFUSED", "OVERFLOW", "DENIED", "CORRUPT", "EXPIRED", "LOCKED", "BROKEN")
FILES = ("app.log", "web.log", "mail.log", "job.log", "disk.log", "auth.log", "sync.log")
USERS = ("amir", "bela", "chen", "dina", "emil", "fola", "gita", "hugo", "ines", "jun")
PARTS = ("cache", "queue", "index", "login", "search", "billing")


def clock_time(draw: random.Random, second: int) -> str:
    """Return a time of one day."""
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.{draw.randrange(1000):03}"


def make(size: str, number: int, held_out: bool, draw: random.Random) -> TerminalTask:
    """Return a task; words of held-out small tasks follow from their numbers and are theirs alone."""
    if size == "small":
        return one_line(number, draw)
    return {"medium": one_number, "large": slowest_request}[size](number, held_out, draw)


def one_line(number: int, draw: random.Random) -> TerminalTask:
    """Ask for the only line with a word."""
    word, file = WORDS[number % len(WORDS)], FILES[number % len(FILES)]
    target = f"line{draw.randrange(10, 100)}.txt"
    lines = [
        f"{clock_time(draw, 60 * index)} ok {draw.choice(PARTS)} id={draw.randrange(16**6):06x}" for index in range(30)
    ]
    at = draw.randrange(30)
    lines[at] = lines[at].replace(" ok ", f" {word} ")
    return TerminalTask(
        f"One line of {file} has the word {word}. Write that line to {target}.",
        {file: "\n".join(lines) + "\n"},
        (f"grep {word} {file} > {target}",),
        (FileCheck(target, lines[at]),),
    )


def one_number(number: int, largest: bool, draw: random.Random) -> TerminalTask:
    """Ask for the sum or the largest number of a field over the lines of a user with a level."""
    file, user, level = FILES[number % len(FILES)], draw.choice(USERS), draw.choice(("WARN", "ERROR"))
    field = ("ms", "bytes", "retries")[number % 3]
    found, lines = list[int](), []
    for index in range(300):
        one, severity, value = draw.choice(USERS), draw.choice(("INFO", "WARN", "ERROR")), draw.randrange(10, 9000)
        if index % 40 == 7:
            one, severity = user, level
        if one == user and severity == level:
            found.append(value)
        lines.append(f"{clock_time(draw, 90 * index)} {severity} {draw.choice(PARTS)} user={one} {field}={value}")
    pattern = f" {level} .* user={user} {field}="
    target, asked = ("most.txt", "find the largest of") if largest else ("sum.txt", "add up")
    program = "$1 > s {s = $1} END {print s}" if largest else "{s += $1} END {print s}"
    return TerminalTask(
        f"In {file}, {asked} the numbers after `{field}=` of all lines of level {level} whose user is {user}. "
        f"Write the {'number' if largest else 'sum'} to {target}.",
        {file: "\n".join(lines) + "\n"},
        (
            f"head -3 {file}",
            f"grep '{pattern}' {file} | sed 's/.*{field}=//' | awk '{program}' > {target}",
            f"cat {target}",
        ),
        (FileCheck(target, max(found) if largest else sum(found)),),
    )


def slowest_request(number: int, missing: bool, draw: random.Random) -> TerminalTask:
    """Ask for the slowest failed or missing requests, whose beginning and end are in different files."""
    count, starts, ends = 3 + number % 3, [], []
    failed: list[tuple[int, str, str]] = []
    requests = draw.sample(range(16**6), 150)
    durations = draw.sample(range(50, 20_000), 150)
    for index, (request, duration) in enumerate(zip(requests, durations, strict=True)):
        user, begin = draw.choice(USERS), 100_000 + 37_000 * index + draw.randrange(1000)
        code = draw.choice((200, 200, 404, 500, 503))
        starts.append((begin, f"{begin} start {request:06x} user={user} path=/{draw.choice(PARTS)}"))
        ends.append((begin + duration, f"{begin + duration} end {request:06x} status={code}"))
        if code == 404 if missing else code >= 500:
            failed.append((duration, f"{request:06x}", user))
    answer = "\n".join(f"{request} {user} {took}" for took, request, user in sorted(failed, reverse=True)[:count])
    both = [line for _, line in sorted(starts + ends)]
    files = {f"server.{part}.log": "\n".join(both[part::3]) + "\n" for part in range(3)}
    condition, asked = ("== 404", "404") if missing else (">= 500", "500 or more")
    program = f"""
import glob, re
begin, rows = {{}}, []
lines = [line for name in glob.glob('server.*.log') for line in open(name)]
lines.sort(key=lambda line: int(line.split()[0]))
for line in lines:
    at, event, request, rest = line.split(maxsplit=3)
    if event == 'start':
        begin[request] = int(at), re.search('user=([a-z]+)', rest)[1]
    elif int(rest.split('=')[1]) {condition}:
        rows.append((int(at) - begin[request][0], request, begin[request][1]))
for took, request, user in sorted(rows, reverse=True)[:{count}]:
    print(request, user, took)
""".strip()
    return TerminalTask(
        "The lines of the files server.0.log to server.2.log have a time in milliseconds, `start` or `end`, and the id "
        f"of a request. Find the {count} slowest requests (end minus start) whose status is {asked}. Write a line "
        "`id user milliseconds` for each to slow.txt, the slowest first.",
        files,
        ("head -2 server.*.log", f"python3 > slow.txt <<'END'\n{program}\nEND", "cat slow.txt"),
        (FileCheck("slow.txt", answer),),
    )
