"""FSDP2 ranks resume from the checkpoint of other ranks: equal weights and moments, the same next update.

The rows of most weights do not divide by two or three. The critic's output layer has one row, so all ranks but the
first one have an empty shard of it.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests.support.engines import one_rank
from tests.support.fsdp_rank import KINDS, Job, run_ranks
from tests.support.models import write_byte_model, write_qwen2
from verl_agent.platform.resharding import own_part

SAME = {kind: kind for kind in KINDS}
MESHES = SAME | {"verl": "replicas", "replicas": "verl"}
CHANGES = {
    "1 to 2": (1, 2, SAME),
    "2 to 1": (2, 1, SAME),
    "3 to 2": (3, 2, SAME),
    "another fsdp_size": (2, 2, MESHES),
}
"""Numbers of ranks that write and that read, and the kind whose checkpoint each kind reads."""
UNTIED = "untied"
"""Job with a model whose output layer is not its embedding."""
TOLERANCE = 1e-6

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_byte_model(folder, ["go up"], 259, hidden_size=40, intermediate_size=49, num_hidden_layers=2)


@pytest.fixture(scope="module")
def written(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, dict[str, list[Any]]]]:
    """Return folder and results of uninterrupted training, by the number of ranks."""
    root, found = tmp_path_factory.mktemp("written"), {}
    untied = write_qwen2(root / "model", ["go up"], 259, hidden_size=32, num_hidden_layers=2)
    jobs = {kind: Job(kind, str(model)) for kind in KINDS} | {UNTIED: Job("cpu", str(untied))}
    for ranks in (1, 2, 3):
        folder = root / str(ranks)
        found[ranks] = folder, run_ranks(folder, ranks, jobs)
    return found


@pytest.fixture(scope="module")
def resumed(model: Path, written, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Return the results of the ranks that resumed, by change and kind."""
    root, found = tmp_path_factory.mktemp("read"), {}
    for ranks in (1, 2):
        jobs = {
            f"{change} {kind}": Job(kind, str(model), str(written[wrote][0] / source[kind]))
            for change, (wrote, reads, source) in CHANGES.items()
            for kind in KINDS
            if reads == ranks
        }
        found |= run_ranks(root / str(ranks), ranks, jobs)
    return found


@pytest.fixture(scope="module", params=CHANGES)
def change(request: pytest.FixtureRequest, written, resumed):
    """Return the results of the ranks that wrote and of those that resumed, by the kind that resumed."""
    wrote, _, source = CHANGES[request.param]
    _, results = written[wrote]
    expected = {kind: results[source[kind]] for kind in KINDS}
    return expected, {kind: resumed[f"{request.param} {kind}"] for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_weights_moments_and_scheduler_are_equal_bit_by_bit(change, kind):
    expected, actual = (each[kind] for each in change)
    for rank in actual:
        for part in ("weights", "moments"):
            wanted: dict[str, Tensor] = expected[0]["first"][part]
            found: dict[str, Tensor] = rank["first"][part]
            assert {*found} == {*wanted} and len(wanted) > 20
            assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []
        assert rank["first"]["scheduler"] == expected[0]["first"]["scheduler"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_update_is_that_of_the_uninterrupted_ranks(change, kind):
    expected, actual = (each[kind] for each in change)
    wanted, before = (expected[0][step]["weights"] for step in ("second", "first"))
    found = actual[0]["second"]["weights"]
    assert max(float((wanted[name] - before[name]).abs().max()) for name in wanted) > 1e-3
    assert max(float((wanted[name] - found[name]).abs().max()) for name in wanted) < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_each_rank_continues_with_the_random_state_of_one_that_wrote(change, kind):
    expected, actual = (each[kind] for each in change)
    for rank, found in enumerate(actual):
        assert torch.equal(found["random"], expected[rank % len(expected)]["random"])


def test_two_ranks_train_a_model_whose_output_layer_is_not_its_embedding(written):
    """Replacements are checked with the weights, which verl loads on the first rank only."""
    (_, one), (_, two) = written[1], written[2]
    for step in ("first", "second"):
        expected, found = (ranks[UNTIED][0][step]["weights"] for ranks in (one, two))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_a_tensor_with_other_rows_raises_value_error_naming_it():
    one_rank()
    written = distribute_tensor(torch.zeros(3, 2), init_device_mesh("cpu", (1,)), [Shard(0)])
    with pytest.raises(ValueError, match=r"^norm\.weight: the checkpoint has 3 rows, the model 4\.$"):
        own_part("norm.weight", [written], torch.zeros(4, 2))
