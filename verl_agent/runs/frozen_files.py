"""Calls to a file system that may not answer, such as a frozen NFS, without waiting for it.

The supervisor of a run must still end and restart it then. A call that does not answer keeps its thread.
"""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")
NO_ANSWER = "the file system of the run does not answer"
ANSWER_S = 5.0
"""Seconds to wait for a file system."""


def answer_within(timeout_s: float, call: Callable[[], Answer], otherwise: Answer) -> Answer:
    """Return the result of a call that raises nothing; `otherwise` if it takes longer than `timeout_s`."""
    return Reader(timeout_s).ask(call, otherwise)


class Reader:
    """Calls one after the other; while one waits for the file system, no other is made."""

    def __init__(self, timeout_s: float = ANSWER_S) -> None:
        self._timeout_s = timeout_s
        self._thread: threading.Thread | None = None

    @property
    def waits(self) -> bool:
        """True if the last call has not been answered."""
        return self._thread is not None and self._thread.is_alive()

    def ask(self, call: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Return the result of a call that raises nothing; `otherwise` if it or an earlier one is not answered."""
        if self.waits:
            return otherwise
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._thread = threading.Thread(target=lambda: answers.put(call()), daemon=True)
        self._thread.start()
        try:
            return answers.get(timeout=self._timeout_s)
        except queue.Empty:
            return otherwise
