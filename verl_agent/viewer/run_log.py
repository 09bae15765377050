"""End of a run's log, and the first error in it."""

from pathlib import Path

from verl_agent.results.folder import LOG
from verl_agent.runs.first_error import first_error_in

TAIL_BYTES = 32_000


def latest_log(folder: Path) -> Path | None:
    """Return the log file of the latest start of a run or of an evaluation; None without one."""
    found = [*sorted((folder / "logs").glob("*.log")), *((folder / LOG,) if (folder / LOG).is_file() else ())]
    return found[-1] if found else None


def read_tail(log: Path) -> tuple[str, str]:
    """Return the first error of a log, "" without one, and its last lines."""
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return first_error_in([log]), text if size <= TAIL_BYTES else text.partition("\n")[2]
