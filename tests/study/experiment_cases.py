"""Small data, small networks and ways to interrupt, for the tests of experiments."""

import warnings

import torch

from cosnorm.study.data import Dataset, Split
from cosnorm.study.runs.config import Config
from cosnorm.study.train.stopping import Stop


def clusters(rows=60, classes=3, shape=(6,), seed=0):
    """Classes that a network can tell apart: another part of the row is larger for each."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % classes
    size = torch.Size(shape).numel()
    x = torch.rand(rows, size, generator=generator)
    x += 0.8 * (torch.arange(size) * classes // size == y[:, None])
    return x.view(rows, *shape), y


def dataset_of(name, train, test, y, kind):
    rows = train.shape[0]
    names = tuple(f"class {k}" for k in range(int(y.max()) + 1))
    return Dataset(name, Split(train, y[:rows]), Split(test, y[rows:]), names, kind)


def vector_data(rows=60, test=30, classes=3):
    x, y = clusters(rows + test, classes)
    names = tuple(f"class {k}" for k in range(classes))
    return Dataset(
        "clusters", Split(x[:rows], y[:rows]), Split(x[rows:], y[rows:]), names, "vector"
    )


def image_data(rows=60, test=30, shape=(1, 8, 8), classes=3):
    x, y = clusters(rows + test, classes, shape)
    x = (x * 100).to(torch.uint8)
    return dataset_of("images", x[:rows], x[rows:], y, "image")


def sparse_data(rows=60, test=30, features=40, classes=3):
    x, y = clusters(rows + test, classes, (features,))
    x[x < 0.7] = 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        train, evaluation = x[:rows].to_sparse_csr(), x[rows:].to_sparse_csr()
    return dataset_of("sparse", train, evaluation, y, "sparse")


def config_for(method="cosine", **settings):
    basis = {"epochs": 4, "batch_size": 10, "lr": 1.0, "width": 8, "channels": 4}
    if "steps" in settings:
        del basis["epochs"]
    return Config(dataset="clusters", method=method, **{**basis, **settings})


class StopAfter(Stop):
    """Asks to stop when it has been asked so many times."""

    def __init__(self, steps, reason="SIGTERM"):
        super().__init__()
        self.left, self.told = steps, reason

    @property
    def reason(self):
        if self.left == 0:
            return self.told
        self.left -= 1
        return None


class Notes:
    """A watcher that writes down what it is told."""

    def __init__(self):
        self.begun, self.steps, self.evaluations, self.warnings = [], [], [], []
        self.ended = []

    def begin(self, config, step, total, batch_size):
        self.begun.append((step, total))

    def step(self, step):
        self.steps.append(step)

    def evaluation(self, evaluation):
        self.evaluations.append(evaluation)

    def warning(self, text):
        self.warnings.append(text)

    def end(self, status, summary):
        self.ended.append(status)


def result(folder):
    """What must not depend on interruptions: parameters, and metrics without their times."""
    import json

    from safetensors.torch import load

    tensors = load((folder / "model.safetensors").read_bytes())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    keys = ("epoch", "step", "train_loss", "test_error", "test_error_raw")
    return tensors, [{key: line.get(key) for key in keys} for line in lines]


def assert_same_result(one, other):
    (tensors, metrics), (other_tensors, other_metrics) = result(one), result(other)
    assert metrics == other_metrics
    assert tensors.keys() == other_tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, other_tensors[name]), name
