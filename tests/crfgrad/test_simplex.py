"""The projection: against a second algorithm, its Jacobian by gradcheck, and what it refuses."""

from functools import partial

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from crfgrad import check_values, project_simplex
from crfgrad.ops.rows import softmax
from tests.crfgrad.oracles import simplex_by_bisection


@pytest.mark.parametrize("scale", [1e-5, 1e-3, 1.0, 1e2, 1e4])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 21, 64, 200])
def test_agrees_with_bisection(size: int, scale: float) -> None:
    x = scale * torch.randn(50, size, generator=torch.Generator().manual_seed(size))
    assert torch.allclose(project_simplex(x).double(), simplex_by_bisection(x), atol=1e-6)
    assert torch.allclose(project_simplex(x.double()), simplex_by_bisection(x), atol=1e-11)


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e4])
def test_stays_on_the_simplex_in_float32(scale: float) -> None:
    q = project_simplex(scale * torch.randn(4, 21, 30, 30))
    assert q.min() >= 0
    assert (q.sum(1) - 1).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([5.0, 5.0, 5.0, 5.0], [0.25, 0.25, 0.25, 0.25]),
        ([2.0, 2.0, 0.0], [0.5, 0.5, 0.0]),
        ([0.0, -1.0, -1.0], [1.0, 0.0, 0.0]),  # the others lie exactly at the threshold
        ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
        ([-7.0], [1.0]),
    ],
)
def test_ties_and_equal_entries(x: list[float], expected: list[float]) -> None:
    assert torch.allclose(project_simplex(torch.tensor([x])), torch.tensor([expected]), atol=1e-7)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_any_dimension(dim: int) -> None:
    x = torch.randn(4, 5, 6)
    expected = simplex_by_bisection(x.movedim(dim, -1)).movedim(-1, dim)
    assert torch.allclose(project_simplex(x, dim=dim).double(), expected, atol=1e-6)


@pytest.mark.parametrize("leak", [0.1, 0.5, 1.0])
def test_leak_agrees_with_bisection(leak: float) -> None:
    x = torch.randn(50, 21, dtype=torch.float64)
    assert torch.allclose(project_simplex(x, leak=leak), simplex_by_bisection(x, leak), atol=1e-11)


def test_the_largest_numbers_there_are() -> None:
    x = torch.tensor([[3e38, -3e38, 3e38], [-3e38, -3e38, -3e38]])
    expected = torch.tensor([[0.5, 0.0, 0.5], [1 / 3, 1 / 3, 1 / 3]])
    assert torch.allclose(project_simplex(x), expected)


def test_leak_is_the_slope_below_the_threshold() -> None:
    x = torch.tensor([[1.0, 0.8, -2.0]])  # threshold 0.4
    assert torch.allclose(project_simplex(x, leak=0.1), torch.tensor([[0.6, 0.4, -0.24]]))


@pytest.mark.parametrize("leak", [0.0, 0.1, 0.5])
def test_gradients(leak: float) -> None:
    x = torch.randn(3, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert gradcheck(lambda x: project_simplex(x, leak=leak), x)
    assert gradgradcheck(lambda x: project_simplex(x, leak=leak), x)


@pytest.mark.parametrize("bad", [[0.0, torch.inf], [0.0, torch.nan], [torch.inf, torch.inf], [-torch.inf, -torch.inf]])
def test_refuses_what_is_not_finite(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="NaN or infinity"):
        project_simplex(torch.tensor([bad]))


@pytest.mark.parametrize("labels", [3, 8, 21, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_not_finite_gives_nan_in_its_row_alone(labels: int, dtype: torch.dtype) -> None:
    x = torch.randn(200, labels, dtype=dtype)
    bad = x.clone()
    for row, label in ((3, 0), (50, labels // 2), (64, labels - 1), (199, 1)):
        bad[row, label] = torch.nan
        bad[row + 1 - 2 * (row == 199), label] = torch.inf
    bad[100] = -torch.inf
    wrong = ~torch.isfinite(bad).all(1)
    assert wrong.sum() == 9
    with check_values(False):
        for function in (project_simplex, partial(project_simplex, leak=0.1), softmax, partial(softmax, factor=2.0)):
            result = function(bad)
            assert result[wrong].isnan().all()
            assert torch.equal(result[~wrong], function(x)[~wrong])


def test_refuses_other_bad_input() -> None:
    with pytest.raises(ValueError, match="leak must be between"):
        project_simplex(torch.zeros(1, 2), leak=-0.1)
    with pytest.raises(TypeError, match="float32 or float64"):
        project_simplex(torch.zeros(1, 2, dtype=torch.float16))
    with pytest.raises(ValueError, match="x has 1 dimensions, so there is no dimension 1"):
        project_simplex(torch.zeros(3))
    with pytest.raises(ValueError, match="no labels"):
        project_simplex(torch.zeros(3, 0))
    assert project_simplex(torch.zeros(0, 3)).shape == (0, 3)
