"""Folders of the sites: programs, initial state, and copies of the state."""

import os
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).parent
KEY_CHARS = 12
SITES_VARIABLE = "VERL_AGENT_SITES"


def sites_home() -> Path:
    """Return the default folder: `$VERL_AGENT_SITES`, or below `$VERL_AGENT_CACHE`, or in the user's cache."""
    folder = os.environ.get(SITES_VARIABLE)
    if folder:
        return Path(folder)
    cache_folder = os.environ.get("VERL_AGENT_CACHE")
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return (Path(cache_folder) if cache_folder else root / "verl_agent") / "webarena"


@dataclass(frozen=True, slots=True)
class Home:
    """Root folder of one set of sites."""

    folder: Path

    @property
    def venv(self) -> Path:
        """Virtual environment of the sites."""
        return self.folder / "venv"

    @property
    def fossil(self) -> Path:
        """Folder into which Fossil is unpacked if it is not installed."""
        return self.folder / "fossil"

    @property
    def copies(self) -> Path:
        """Folder of the copies, which are one folder each."""
        return self.folder / "copies"

    @property
    def logs(self) -> Path:
        """Folder with the logs of the sites' processes."""
        return self.folder / "logs"

    @property
    def state(self) -> Path:
        """File with ports and process id of the running sites."""
        return self.folder / "state.json"

    @property
    def lock(self) -> Path:
        """Lock of the supervisor, which it holds while the sites run."""
        return self.folder / "lock"

    @property
    def installing(self) -> Path:
        """Lock of the process that installs and starts the sites."""
        return self.folder / "installing"

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
