"""Fixtures of the tests of the ops."""

import pytest

from cosnorm.ops import backend, reference


@pytest.fixture
def triton_passes(monkeypatch):
    """All layers by Triton; every launch is given the addresses of its tensors, which are round."""
    from cosnorm.ops.triton import plan

    launched = plan.Launch.__call__
    kinds = {}

    def checked(launch, stream, addresses, tensors, *factors):
        found = tuple(None if t is None else t.data_ptr() for t in tensors)
        assert addresses == found and not any(at and at & 15 for at in found)
        # A compiled kernel is called by addresses: it takes what its first call gave it.
        dtypes = [None if t is None else t.dtype for t in tensors]
        assert kinds.setdefault(launch, dtypes) == dtypes
        launched(launch, stream, addresses, tensors, *factors)

    monkeypatch.setattr(plan.Launch, "__call__", checked)
    before = backend.set_backend("triton")
    plan.forget()  # some tests change what plans are made of
    with reference.without_tf32():  # what is compared is the passes, not how products round
        yield
    plan.forget()
    backend.set_backend(before)
