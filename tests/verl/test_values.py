"""Test that scalars of torch become the numbers of Python."""

import pytest
import torch

from verl_agent.values import to_flag, to_number


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_tensor_with_one_element_is_a_number(dtype, shape):
    assert (to_number(torch.ones(shape, dtype=dtype)), to_flag(torch.zeros(shape, dtype=dtype))) == (1.0, False)


def test_a_tensor_with_a_gradient_is_a_number():
    assert to_number(torch.tensor(0.5, requires_grad=True)) == 0.5


@pytest.mark.parametrize(
    "value",
    [torch.ones(2), torch.ones(0), torch.tensor(float("nan")), torch.tensor(1j), torch.ones(1, device="meta")],
    ids=repr,
)
def test_other_tensors_are_not_numbers(value):
    assert to_number(value) is None
