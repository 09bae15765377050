"""Tests of the benchmark of waiting threads: its policies and ratios. Speed is not tested."""

from tests.bench.threads import OWN, cell, settings_of

MOST_S = 30.0


def test_a_cell_has_the_median_of_the_ratios_of_each_round():
    seconds = {"default": [2.0, 6.0, 3.0], OWN: [1.0, 2.0, 3.0]}
    assert cell("default", seconds, MOST_S) == "2.00 (3000 ms)"


def test_a_process_that_did_not_end_in_time_marks_its_cell():
    seconds = {"default": [MOST_S, 40.0, 3.0], OWN: [1.0, 2.0, 3.0]}
    assert cell("default", seconds, MOST_S) == ">20.00 (>30000 ms)"


def test_rounds_whose_base_did_not_end_in_time_are_left_out():
    seconds = {"default": [1.0, 6.0, 3.0], OWN: [MOST_S, 2.0, MOST_S]}
    assert cell("default", seconds, MOST_S) == "3.00 (3000 ms)"
    assert cell("default", {"default": [1.0], OWN: [MOST_S]}, MOST_S) == "no ratio (1000 ms)"


def test_a_policy_sets_its_variable_and_niceness_alone():
    environment = {"HOME": "/root", "OMP_WAIT_POLICY": "active"}
    assert settings_of("GOMP_SPINCOUNT=100, nice 15", environment) == ({"HOME": "/root", "GOMP_SPINCOUNT": "100"}, 15)
    assert settings_of("default", environment) == ({"HOME": "/root"}, 0)
