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
from tests.support.fsdp_rank import KINDS, run_ranks
from tests.support.models import write_byte_model
from verl_agent.platform.resharding import own_part

SAME = {kind: kind for kind in KINDS}
MESHES = SAME | {"verl": "replicas", "replicas": "verl"}
CHANGES = [(1, 2, SAME), (2, 1, SAME), (3, 2, SAME), (2, 2, MESHES)]
"""Numbers of ranks that write and that read, and the kind whose checkpoint each kind reads."""
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
    for ranks in (1, 2, 3):
        folder = root / str(ranks)
        found[ranks] = folder, run_ranks(folder, ranks, model, dict.fromkeys(KINDS))
    return found


@pytest.fixture(scope="module", params=CHANGES, ids=["1 to 2", "2 to 1", "3 to 2", "another fsdp_size"])
def change(request: pytest.FixtureRequest, model: Path, written, tmp_path_factory: pytest.TempPathFactory):
    """Return the results of the ranks that wrote and of those that resumed, by the kind that resumed."""
    wrote, reads, source = request.param
    folder, results = written[wrote]
    root = tmp_path_factory.mktemp("read") / "ranks"
    expected = {kind: results[source[kind]] for kind in KINDS}
    return expected, run_ranks(root, reads, model, {kind: folder / source[kind] for kind in KINDS})


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


def test_a_tensor_with_other_rows_raises_value_error_naming_it():
    one_rank()
    written = distribute_tensor(torch.zeros(3, 2), init_device_mesh("cpu", (1,)), [Shard(0)])
    with pytest.raises(ValueError, match=r"^norm\.weight: the checkpoint has 3 rows, the model 4\.$"):
        own_part("norm.weight", [written], torch.zeros(4, 2))
