"""Memory is asked for before it is taken, and about as much as is taken."""

import pytest

from cosnorm.study.data import DataError, memory
from cosnorm.study.data.memory import ask_memory, memory_here


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Files in place of those in which Linux says how much memory there is."""
    for name in ("_FREE", "_LIMIT", "_TAKEN"):
        monkeypatch.setattr(memory, name, tmp_path / name)
    pages = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("os.sysconf", pages.__getitem__)
    return tmp_path


def test_what_others_have_taken_is_not_there(system):
    assert memory_here() == 4096 * 1000
    (system / "_FREE").write_text("MemTotal: 4000 kB\nMemFree: 1 kB\nMemAvailable: 3000 kB\n")
    assert memory_here() == 1024 * 3000
    (system / "_LIMIT").write_text("max\n")
    assert memory_here() == 1024 * 3000
    (system / "_LIMIT").write_text("2000000\n")
    assert memory_here() == 2_000_000
    (system / "_TAKEN").write_text("anon 500000\nfile 1400000\n")
    assert memory_here() == 1_500_000
    ask_memory(system, 1_500_000, "rows", "give fewer")
    with pytest.raises(DataError, match=r"rows need 0.0 GB of memory and 0.0 are free; give fewer"):
        ask_memory(system, 1_500_001, "rows", "give fewer")


def test_where_nothing_is_known_nothing_is_refused(system, monkeypatch):
    monkeypatch.delattr("os.sysconf")
    assert memory_here() is None
    ask_memory(system, 1 << 60, "rows", "give fewer")
