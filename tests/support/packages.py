"""A Python path without one installed package."""

import sysconfig
from pathlib import Path

from tests import ROOT


def path_without(package: str, folder: Path) -> str:
    """Return a PYTHONPATH with this repository and all installed packages but one.

    Run `python -S` with it: site-packages itself is left out then.
    """
    for installed in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not installed.name.lower().startswith(package):
            folder.joinpath(installed.name).symlink_to(installed)
    return f"{ROOT}:{folder}"
