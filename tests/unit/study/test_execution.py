"""Test how the worker processes of a study share a machine."""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from verl_agent.study.execution import begin_worker, shares_of_cores


@pytest.mark.skipif(sys.platform != "linux", reason="a process chooses its cores on Linux only")
def test_each_worker_has_its_own_cores():
    whole, context = os.sched_getaffinity(0), get_context("spawn")
    for jobs in {1, min(2, len(whole))}:
        barrier = context.Manager().Barrier(jobs)  # so that each worker has one of the calls
        with ProcessPoolExecutor(jobs, context, begin_worker, (context.Value("i", 0), jobs)) as pool:
            shares = [future.result() for future in [pool.submit(_cores, barrier) for _ in range(jobs)]]
        assert set().union(*shares) == whole
        assert sum(map(len, shares)) == len(whole)


def test_more_workers_than_cores_have_all_of_them(tmp_path):
    assert shares_of_cores(3, {0, 1}, tmp_path) == [[0, 1]] * 3


@pytest.mark.parametrize(
    ("siblings", "shares"),
    [
        (["0-1", "0-1", "2-3", "2-3"], [[0, 1], [2, 3]]),
        (["0,2", "1,3", "0,2", "1,3"], [[0, 2], [1, 3]]),
        (["0", "1", "2", "3"], [[0, 1], [2, 3]]),
        ([], [[0, 1], [2, 3]]),
    ],
    ids=["neighbours", "apart", "one each", "unknown"],
)
def test_logical_cores_of_one_core_stay_together(siblings, shares, tmp_path):
    for core, text in enumerate(siblings):
        folder = tmp_path / f"cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "core_cpus_list").write_text(f"{text}\n")
    assert shares_of_cores(2, range(4), tmp_path) == shares


def _cores(barrier) -> set[int]:
    barrier.wait(60)
    return os.sched_getaffinity(0)
