"""Person who runs this process, for messages to other people."""

import getpass
import os


def user_name() -> str:
    """Return the name of the user, or the number of one without a name, as in a container with `--user`."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
