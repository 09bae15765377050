"""Folders of the sites: programs, initial state, and copies of the state."""

import os
from functools import cache
from hashlib import sha256
from pathlib import Path

from verl_agent.envs.cache import cache_dir

HERE = Path(__file__).parent
KEY_CHARS = 12
SITES_VARIABLE = "VERL_AGENT_SITES"


def sites_home() -> Path:
    """Return the default folder: `$VERL_AGENT_SITES`, or below `$VERL_AGENT_CACHE`, or in the user's cache."""
    folder = os.environ.get(SITES_VARIABLE)
    return Path(folder) if folder else cache_dir() / "webarena"


class Home:
    """Root folder of one set of sites."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.venv = folder / "venv"
        """Virtual environment of the sites."""
        self.fossil = folder / "fossil"
        """Folder into which Fossil is unpacked if it is not installed."""
        self.copies = folder / "copies"
        """Folder of the copies, which are one folder each."""
        self.logs = folder / "logs"
        """Folder with the logs of the sites' processes."""
        self.state = folder / "state.json"
        """File with ports and process id of the running sites."""
        self.lock = folder / "lock"
        """Lock of the supervisor, which it holds while the sites run."""
        self.installing = folder / "installing"
        """Lock of the process that installs and starts the sites."""

    def seed(self, number: int) -> Path:
        """Return the folder with the initial state of copies, for a seed and the code that generates it."""
        return self.folder / f"seed-{number}-{code_key()}"


@cache
def code_key() -> str:
    """Return a hash of the code that generates the data and fills the sites."""
    digest = sha256()
    files = [*HERE.glob("world/**/*"), *HERE.glob("served/**/*"), HERE / "requirements.txt", HERE / "logins.py"]
    for file in sorted(file for file in files if file.is_file() and file.suffix != ".pyc"):
        digest.update(f"{file.relative_to(HERE)}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:KEY_CHARS]
