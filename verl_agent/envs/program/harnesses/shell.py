"""Shell of the small agents in this folder: one tool, whose children do not get the key of the endpoint."""

import os
import subprocess

INSTRUCTIONS = "You are an agent in a Linux sandbox. Work on the task with your tool until it is done."
SECONDS = "60"
CHARACTERS = 10_000


def bash(command: str) -> str:
    """Run a command in the shell of the sandbox and return its output.

    Args:
        command: command to run
    """
    variables = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    done = subprocess.run(
        ["timeout", SECONDS, "bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=variables, check=False,
    )  # fmt: skip
    text = done.stdout.decode(errors="replace")
    text = text if len(text) <= CHARACTERS else f"{text[: CHARACTERS // 2]}\n[...]\n{text[-CHARACTERS // 2 :]}"
    return text + (f"[exit status {done.returncode}]" if done.returncode else "") or "(no output)"
