"""Benchmarks, each a module with its command in the first lines."""

import os

from verl_agent.platform.worker_environment import thread_waiting

os.environ.update(thread_waiting())  # as in a run, before the import of torch
