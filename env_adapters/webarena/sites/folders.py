"""Where the sites keep what they make: programs, the state that copies begin with, the copies themselves."""

import os
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).parent
KEY_CHARS = 12
SITES_VARIABLE = "VERL_AGENT_SITES"


def sites_home() -> Path:
    """The folder of all this: `$VERL_AGENT_SITES`, or below `$VERL_AGENT_CACHE`, or in the user's cache."""
    named = os.environ.get(SITES_VARIABLE)
    if named:
        return Path(named)
    chosen = os.environ.get("VERL_AGENT_CACHE")
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return (Path(chosen) if chosen else root / "verl_agent") / "webarena"


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one set of sites, and what lies in it."""

    folder: Path

    @property
    def venv(self) -> Path:
        """The virtual environment that the sites run in."""
        return self.folder / "venv"

    @property
    def fossil(self) -> Path:
        """Where Fossil is unpacked if the machine has none."""
        return self.folder / "fossil"

    @property
    def copies(self) -> Path:
        """The copies, a folder each."""
        return self.folder / "copies"

    @property
    def logs(self) -> Path:
        """What the sites' processes print."""
        return self.folder / "logs"

    @property
    def state(self) -> Path:
        """Addresses and process of the sites that run."""
        return self.folder / "state.json"

    @property
    def lock(self) -> Path:
        """Held by the process that runs the sites."""
        return self.folder / "lock"

    @property
    def installing(self) -> Path:
        """Held by who makes what the sites need, and starts them."""
        return self.folder / "installing"

    def seed(self, number: int) -> Path:
        """The state that copies begin with, for the world of a seed and the code that writes it."""
        return self.folder / f"seed-{number}-{code_key()}"


@cache
def code_key() -> str:
    """A name for the present code of the worlds and of the seeding."""
    found = sha256()
    files = [*HERE.glob("world/**/*"), *HERE.glob("served/**/*"), HERE / "requirements.txt", HERE / "logins.py"]
    for file in sorted(file for file in files if file.is_file() and file.suffix != ".pyc"):
        found.update(f"{file.relative_to(HERE)}\n".encode() + file.read_bytes())
    return found.hexdigest()[:KEY_CHARS]
