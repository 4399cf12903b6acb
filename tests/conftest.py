"""Every test runs with uninitialised memory poisoned and warnings as errors (pyproject.toml)."""

import atexit
import os
import shutil
import tempfile

if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
    # A cache of our own: torch's holds calls of our ops as they were when it was filled.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="cosnorm-inductor-")
    atexit.register(shutil.rmtree, os.environ["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)

import pytest
import torch

if not torch.cuda.is_available():  # before anything imports triton: its kernels run on the CPU
    os.environ["TRITON_INTERPRET"] = "1"
else:  # what cuBLAS asks for before it promises to repeat itself
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# Two test processes share the cores; more threads each would only make them wait for one another.
torch.set_num_threads(int(os.environ.get("COSNORM_TEST_THREADS", "1")))


@pytest.fixture(autouse=True)
def poisoned_memory():
    """`torch.empty` returns NaN, so that a result nothing wrote cannot pass for zero."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
