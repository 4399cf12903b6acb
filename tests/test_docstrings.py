"""Every example in a docstring, run as it is written, and one for each of the layers."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import cosnorm
from cosnorm import nn

MODULES = [
    module.name
    for module in pkgutil.walk_packages(cosnorm.__path__, "cosnorm.")
    if not module.name.endswith("__main__")
]
LAYERS = [name for name in dir(nn) if name.startswith(("Cosine", "Pearson"))]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(name)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs={"torch": torch}):
        told: list[str] = []
        found = doctest.DocTestRunner().run(test, out=told.append)
        assert not found.failed, "".join(told)


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_has_an_example_of_its_own(name):
    assert f">>> layer = {name}(" in (getattr(nn, name).__doc__ or "")
