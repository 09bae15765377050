"""Trial of the C++ compiler with which torch.compile builds its kernels on a CPU."""

import logging
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

SOURCE = """#include <Python.h>
#include <omp.h>
static PyModuleDef trial = {PyModuleDef_HEAD_INIT, "trial"};
PyMODINIT_FUNC PyInit_trial() { return omp_get_max_threads() < 1 ? nullptr : PyModule_Create(&trial); }
"""
DISABLED = "TORCH_COMPILE_DISABLE"
"""Variable of PyTorch that makes torch.compile return its function unchanged; vLLM obeys it, too."""
logger = logging.getLogger(__name__)
LOAD = "import sys; sys.path.insert(0, sys.argv[1]); import trial"


def compiler_error(timeout_s: float = 120.0, prefix: str = sys.prefix) -> str | None:
    """Compile and load an extension of three lines, as torch.compile does with its kernels.

    The compiler is `$CXX`, or g++, the one that torch.compile starts. The trial takes 0.3 seconds.

    Args:
        timeout_s: limit of the compilation. A compiler that builds its libraries first takes up to a minute.
        prefix: folder of the environment with torch.

    Returns:
        None if it works, else the cause in the compiler's own words.
    """
    if " " in prefix:  # torch 2.13.0 passes the folder of its own libraries to the linker without quotes
        return f"torch.compile does not work below a folder with a space: {prefix}"
    compiler = os.environ.get("CXX", "g++")  # torch.compile starts this as one word, without arguments
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "trial.cpp")
        source.write_text(SOURCE)
        flags = ["-shared", "-fPIC", "-fopenmp", "-std=c++20", f"-I{sysconfig.get_path('include')}"]
        command = [compiler, *flags, str(source), "-o", str(source.with_suffix(".so"))]
        return run_trial(command, timeout_s) or run_trial([sys.executable, "-c", LOAD, folder], timeout_s)


def compilation_variables(
    report: Callable[[str], None] = logger.warning, prefix: str = sys.prefix
) -> Mapping[str, str]:
    """Return the variable that turns torch.compile off where it cannot work; else nothing.

    Args:
        prefix: folder of the environment with torch.
    """
    if os.environ.get(DISABLED) == "1" or (error := compiler_error(prefix=prefix)) is None:
        return {}
    report(
        f"torch.compile is off: {error.splitlines()[0]}. A decoding step of 64 replies takes about 14 ms of CPU time "
        "more. `verl-agent doctor` names the command that installs what is missing."
    )
    return {DISABLED: "1"}


def run_trial(command: list[str], timeout_s: float) -> str | None:
    """Run a command and return the reason of its failure; None if it succeeds."""
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        return f"{command[0]!r} cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not end within {timeout_s:.0f} s"
    said = ended.stdout.decode(errors="replace").strip()
    return None if ended.returncode == 0 else said[-4000:] or f"{command[0]} ended with status {ended.returncode}"
