"""Files in the output folder of an evaluation, and the search for such folders."""

from pathlib import Path

from verl_agent.errors import ConfigError

RECORDS, REPORT, SETTINGS, LOG = "episodes.jsonl", "evaluation.json", "settings.json", "evaluation.log"


def evaluations_in(folder: Path) -> list[Path]:
    """Return the output folders of evaluations at and below a folder.

    Raises:
        ConfigError: there is no such folder.
    """
    found = sorted(path.parent.resolve() for path in folder.rglob(REPORT))
    if not found:
        raise ConfigError(f"{folder} contains no {REPORT}. Give output folders of `verl-agent eval`.")
    return found
