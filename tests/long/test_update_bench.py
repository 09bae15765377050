"""Test of the benchmark of the update: every variant computes the same gradient. Speed is not tested."""

import json
from pathlib import Path

import pytest

from tests.bench.update import main
from tests.support.models import write_byte_model

pytestmark = pytest.mark.slow


def test_every_variant_computes_the_gradient_of_verls_engine(tmp_path: Path):
    texts = ["Goal: craft oak planks\nAction: get 1 oak log"]
    model = write_byte_model(tmp_path / "model", texts, 300, hidden_size=32, num_hidden_layers=1)
    numbers = tmp_path / "numbers.json"
    main(["--repeats", "1", "--tasks", "2", "--kept", "1", "--parts", "--model", str(model), "--json", str(numbers)])
    measured = json.loads(numbers.read_text())["measured"]
    assert len(measured) == 7
    assert max(one["gradient_error"] for one in measured) < 0.05
    assert max(one["log_prob_error"] for one in measured) < 0.02


@pytest.mark.parametrize("wrong", [["--repeats", "0"], ["--kept", "17"]])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(SystemExit):
        main(wrong)
