"""Pipelines against a formula written out image by image, and rows against plain indexing."""

import math

import numpy as np
import pytest
import torch
from data_files import pixels, real_data
from hypothesis import given, settings
from hypothesis import strategies as st

from cosnorm.study.data import load, take, tf_cifar, unit_range
from cosnorm.study.data.rows import sparse_csr


def one_image(image, params, pipeline):
    """The tutorial's steps on one image (C, H, W), in float64 and plain loops over channels."""
    top, left, flip, brightness, contrast = (float(p) for p in params)
    size = pipeline.crop
    row = min(math.floor(np.float32(top) * (image.shape[1] - size + 1)), image.shape[1] - size)
    column = min(math.floor(np.float32(left) * (image.shape[2] - size + 1)), image.shape[2] - size)
    x = image[:, row : row + size, column : column + size].astype(np.float64)
    if pipeline.flip and flip < 0.5:
        x = x[:, :, ::-1]
    x = x + (-63 + 126 * brightness)
    factor = 0.2 + 1.6 * contrast
    x = np.stack([(channel - channel.mean()) * factor + channel.mean() for channel in x])
    return (x - x.mean()) / max(x.std(), 1 / math.sqrt(x.size))


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 40), (3, 24, 24)])
def test_training_equals_the_formula_image_by_image(flip, shape):
    pipeline = tf_cifar(flip=flip)
    x = torch.from_numpy(pixels(40, *shape))
    params = pipeline.draw(40, torch.Generator().manual_seed(3))
    found = pipeline.train(x, params)
    assert found.dtype == torch.float32 and found.shape == (40, *pipeline.output_shape(shape))
    expected = np.stack([one_image(i, p, pipeline) for i, p in zip(x.numpy(), params, strict=True)])
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-5)


def test_evaluation_is_the_standardised_centre():
    x = torch.from_numpy(pixels(5, 3, 32, 32))
    found = tf_cifar.eval(x)
    centre = x[:, :, 4:28, 4:28].double()
    flat = centre.flatten(1)
    mean, std = flat.mean(1)[:, None, None, None], flat.std(1, correction=0)[:, None, None, None]
    torch.testing.assert_close(found.double(), (centre - mean) / std, atol=1e-5, rtol=0)


def test_a_flat_image_stays_at_zero():
    x = torch.full((2, 3, 32, 32), 200, dtype=torch.uint8)
    params = tf_cifar.draw(2, torch.Generator().manual_seed(0))
    for found in (tf_cifar.eval(x), tf_cifar.train(x, params)):
        assert found.abs().max() < 1e-2 and found.isfinite().all()


def test_the_floor_of_the_deviation_is_one_over_root_n():
    x = torch.zeros(1, 1, 24, 24)
    x[0, 0, 0, 0] = 0.024
    expected = (x - x.mean()) * math.sqrt(24 * 24)
    torch.testing.assert_close(tf_cifar.eval(x), expected)


def test_every_crop_position_and_both_directions_occur_alike():
    rows = torch.arange(32, dtype=torch.uint8)
    x = (rows[:, None] * 8 + rows[None, :] // 4).expand(9000, 3, 32, 32)
    params = tf_cifar.draw(9000, torch.Generator().manual_seed(0))
    picked = tf_cifar._random_crop(x, *params.unbind(1)[:3])
    tops = torch.bincount(picked[:, 0, 0, 0].long() // 8, minlength=9)
    assert tops.shape == (9,) and (tops - 1000).abs().max() < 150  # 5 standard deviations
    flipped = (picked[:, 0, 0, 0] > picked[:, 0, 0, -1]).float().mean()
    assert abs(flipped - 0.5) < 0.03


def test_the_edges_of_the_parameters_stay_inside():
    x = torch.from_numpy(pixels(3, 3, 32, 32))
    edge = torch.tensor([[0.0] * 5, [1 - 2**-24] * 5, [1.0] * 5])
    found = tf_cifar.train(x, edge)
    expected = np.stack([one_image(i, p, tf_cifar) for i, p in zip(x.numpy(), edge, strict=True)])
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-5)


def test_the_result_is_a_function_of_the_parameters_and_the_input_is_left_alone():
    x = torch.from_numpy(pixels(8, 3, 32, 32))
    before = x.clone()
    draws = [tf_cifar.draw(8, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    first, again, other = (tf_cifar.train(x, draw) for draw in draws)
    assert torch.equal(first, again) and not torch.equal(first, other) and torch.equal(x, before)
    floats = x.float()
    tf_cifar.train(floats, draws[0])
    assert torch.equal(floats, before.float())
    alone = torch.cat([tf_cifar.train(x[i : i + 1], draws[0][i : i + 1]) for i in range(8)])
    torch.testing.assert_close(alone, first)


def test_images_too_small_to_crop_are_refused():
    with pytest.raises(
        ValueError, match=r"24 × 24 .*received \(1, 8, 8\); use .*--pipeline unit_range"
    ) as caught:
        tf_cifar.output_shape((1, 8, 8))
    assert "--image-size 24 or more" in str(caught.value) and "crop=" not in str(caught.value)
    with pytest.raises(ValueError, match=r"received"):
        tf_cifar.eval(torch.zeros(2, 1, 8, 8))
    with pytest.raises(ValueError, match=r"received"):
        tf_cifar.train(torch.zeros(2, 1, 8, 8), torch.zeros(2, 5))
    assert tf_cifar(crop=6).output_shape((1, 8, 8)) == (1, 6, 6)


def test_an_empty_batch():
    x, params = torch.zeros(0, 3, 32, 32, dtype=torch.uint8), torch.zeros(0, 5)
    assert tf_cifar.train(x, params).shape == tf_cifar.eval(x).shape == (0, 3, 24, 24)
    assert unit_range.eval(x).shape == (0, 3, 32, 32)


def test_unit_range():
    x = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    params = unit_range.draw(1, torch.Generator())
    assert params.shape == (1, 0) and params.dtype == torch.float32 and unit_range() is unit_range
    assert torch.equal(unit_range.train(x, params), x.float() / 255)
    assert unit_range.eval(x).max() == 1 and unit_range.output_shape((7,)) == (7,)
    floats = torch.randn(3, 4)
    sparse = _to_csr(floats.relu())
    assert unit_range.eval(floats) is floats and unit_range.train(sparse, params) is sparse


def _random_csr(rows, columns, seed):
    random = np.random.RandomState(seed)
    dense = torch.from_numpy(
        random.rand(rows, columns) * (random.rand(rows, columns) < 0.3)
    ).float()
    return dense, _to_csr(dense)


def _to_csr(dense):
    row, column = dense.nonzero(as_tuple=True)
    crow = torch.cat([torch.zeros(1), torch.bincount(row, minlength=len(dense)).cumsum(0)])
    return sparse_csr(crow.int(), column.int(), dense[row, column], tuple(dense.shape))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 99), st.data())
def test_take_equals_indexing(rows, columns, seed, data):
    dense, sparse = _random_csr(rows, columns, seed)
    index = torch.tensor(
        data.draw(st.lists(st.integers(0, rows - 1), max_size=20)), dtype=torch.int64
    )
    picked = take(sparse, index)
    assert picked.layout == torch.sparse_csr and picked.shape == (len(index), columns)
    assert torch.equal(picked.to_dense(), dense[index])
    assert torch.equal(take(dense, index), dense[index])


def test_taken_rows_are_a_valid_csr_that_multiplies_and_learns():
    dense, sparse = _random_csr(50, 30, 0)
    picked = take(sparse, torch.tensor([4, 4, 49, 0]))
    torch.sparse_csr_tensor(
        picked.crow_indices(),
        picked.col_indices(),
        picked.values(),
        size=picked.shape,
        check_invariants=True,
    )
    weight = torch.randn(30, 5, requires_grad=True)
    (picked @ weight).sum().backward()
    expected = dense[[4, 4, 49, 0]].sum(0)[:, None].expand(-1, 5)
    torch.testing.assert_close(weight.grad, expected)


def test_take_refuses_what_is_not_a_vector_of_row_numbers():
    _, sparse = _random_csr(5, 3, 0)
    for index in (torch.tensor([[0]]), torch.tensor([True] * 5), torch.tensor([0.0])):
        with pytest.raises(ValueError, match=r"index must be a vector of int64 row numbers"):
            take(sparse, index)
    for index in (torch.tensor([5]), torch.tensor([-1])):
        with pytest.raises((IndexError, RuntimeError)):
            take(sparse, index)


def test_take_on_the_real_set():
    x = load("20news", real_data()).train.x
    index = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:100]
    picked = take(x, index).to_dense()
    for row, number in zip(picked, index.tolist(), strict=True):
        start, end = x.crow_indices()[number], x.crow_indices()[number + 1]
        expected = torch.zeros(x.shape[1])
        expected[x.col_indices()[start:end].long()] = x.values()[start:end]
        assert torch.equal(row, expected)


@pytest.mark.gpu
def test_training_pipeline_in_a_captured_graph():
    x = torch.from_numpy(pixels(128, 3, 32, 32)).cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    params = tf_cifar.draw(128, generator)
    index = torch.randperm(128, device="cuda")
    expected = tf_cifar.train(take(x, index), params)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = tf_cifar.train(take(x, index), params)
    graph.replay()
    torch.testing.assert_close(captured, expected)
    params.copy_(tf_cifar.draw(128, generator))
    index.copy_(torch.randperm(128, device="cuda"))
    graph.replay()
    torch.testing.assert_close(captured, tf_cifar.train(take(x, index), params))
    cpu = tf_cifar.train(take(x, index).cpu(), params.cpu())
    torch.testing.assert_close(captured.cpu(), cpu, atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
def test_take_from_a_sparse_set_on_the_device():
    dense, sparse = _random_csr(50, 30, 0)
    index = torch.tensor([4, 4, 49, 0])
    picked = take(sparse.cuda(), index.cuda())
    assert picked.is_cuda and torch.equal(picked.to_dense().cpu(), dense[index])
