"""The report of `make test-gpu`, from readings of a GPU."""

import json

import pytest

from tests.support.gpu_report import MemoryTrace, Report, parse_trace, summarize


def test_the_memory_before_the_run_is_subtracted_from_the_peak():
    trace = parse_trace("954\n954\n10000\n[N/A]\n3000\n")
    assert trace.before_gb == pytest.approx(1.0, abs=0.01) and len(trace.used_gb) == 3
    assert trace.peak_gb == pytest.approx((10000 - 954) * 2**20 / 1e9)


@pytest.mark.parametrize(
    ("used", "released"),
    [
        ((1, 30, 5, 28), 23),  # sleeps and wakes up
        ((1, 30, 31, 32), 0),  # never sleeps
        ((1, 30, 5), 0),  # sleeps and never wakes up
        ((), 0),
    ],
)
def test_memory_counts_as_released_if_it_is_taken_again(used, released):
    assert MemoryTrace(0, used).released_gb == released


def test_a_run_is_summarized_by_its_last_step():
    steps = {
        1: {"timing_s/gen": 9.0},
        2: {"timing_s/gen": 3.0, "training/rollout_probs_diff_mean": 0.001, "other": 1.0},
    }
    entry = summarize(steps, MemoryTrace(1.0, (5.0,)), {"train_gb": 3.0})
    assert entry["metrics"] == {"timing_s/gen": 3.0, "training/rollout_probs_diff_mean": 0.001}
    assert (entry["peak_gb"], entry["estimated"]) == (4.0, {"train_gb": 3.0})


def test_the_report_is_json_with_the_versions_of_packages(tmp_path):
    report = Report(tmp_path / "report.json", runs={"fsdp2+vllm": {"skipped": "not installed: vllm"}})
    report.write()
    content = json.loads(report.file.read_text())
    assert content["runs"] == {"fsdp2+vllm": {"skipped": "not installed: vllm"}}
    assert content["provenance"]["versions"]["verl"] == "0.9.1"
