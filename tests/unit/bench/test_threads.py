"""Tests of the benchmark of waiting threads: its policies, ratios and arguments. Speed is not tested."""

import pytest

from tests.bench.threads import OWN, parse, row, settings_of


def test_a_row_has_median_and_range_of_the_ratios_of_each_round_and_the_milliseconds_of_the_reference():
    seconds = {"default": [0.002, 0.006, 0.003], OWN: [0.001, 0.002, 0.003]}
    assert row("default", seconds) == ("2.00 (1.00 to 3.00)", "3", "2.000", "3.000")


def test_a_policy_sets_its_variable_and_niceness_alone_and_has_all_cores():
    environment = {"HOME": "/root", "OMP_WAIT_POLICY": "active", "OMP_NUM_THREADS": "1"}
    assert settings_of("GOMP_SPINCOUNT=100, nice 15", environment) == ({"HOME": "/root", "GOMP_SPINCOUNT": "100"}, 15)
    assert settings_of("default", environment) == ({"HOME": "/root"}, 0)


@pytest.mark.parametrize(
    ("wrong", "allowed"),
    [
        (["--repeats", "0"], "--repeats: 0 is not allowed. Allowed: a whole number of at least 1."),
        (["--busy", "0", "-1"], "--busy: -1 is not allowed. Allowed: a whole number of at least 0."),
        (["--seconds", "-1"], "--seconds: -1 is not allowed. Allowed: a number of at least 1."),
        (["--seconds", "nan"], "--seconds: nan is not allowed."),
        (["--repeats", "1.5"], "--repeats: 1.5 is not allowed."),
    ],
)
def test_numbers_out_of_range_are_refused(wrong, allowed, capsys):
    with pytest.raises(SystemExit):
        parse(wrong)
    assert allowed in capsys.readouterr().err
