"""What tests of several rooms share."""

import pytest


@pytest.fixture
def store(monkeypatch):
    """An object store of its own, which the environment names, and little patience with it."""
    from object_server import ObjectServer

    from cosnorm.study.runs import claim, objects

    monkeypatch.setattr(objects, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(claim, "_LOOK_S", 0.01)
    with ObjectServer() as started:
        for name, value in started.environment.items():
            monkeypatch.setenv(name, value)
        yield started
