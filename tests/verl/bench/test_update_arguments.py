"""Tests of the arguments of the benchmarks of the update."""

import pytest

from tests.bench import update, update_shares


@pytest.mark.parametrize(
    ("bench", "wrong", "message"),
    [
        (update, ["--repeats", "0"], "--repeats: 0 is not allowed. Allowed: a whole number of at least 1."),
        (update, ["--kept", "17"], "--kept 17 is more than --tasks 16. Lower it, or raise --tasks."),
        (update_shares, ["--repeats", "0"], "--repeats: 0 is not allowed. Allowed: a whole number of at least 1."),
        (update_shares, ["--shares", "1"], "--shares: 1 is not allowed. Allowed: a number of at least 0 and below 1."),
        (update_shares, ["--length", "1"], "--length: 1 is not allowed. Allowed: a whole number of at least 2."),
        (update_shares, ["--groups", "0"], "--groups: 0 is not allowed. Allowed: a whole number of at least 1."),
    ],
)
def test_numbers_out_of_range_are_refused(bench, wrong, message, capsys):
    with pytest.raises(SystemExit):
        bench.parse(wrong)
    assert message in capsys.readouterr().err
