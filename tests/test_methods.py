"""The table of methods, and what any table of names promises."""

import subprocess
import sys

import pytest

from cosnorm import nn
from cosnorm.methods import METHODS, PAPER_METHODS, STUDIED, Method, with_affine
from cosnorm.registry import Registry, resolve


def test_the_paper_s_methods_in_its_order_and_none():
    assert (*PAPER_METHODS, "none") == STUDIED == tuple(METHODS)[:6]
    assert with_affine() == ["batch", "weight", "layer", "group", "rms"]
    assert [METHODS[name].lr for name in METHODS] == [10.0, 10.0, 1.0, 1.0, 1.0, 0.1, 0.3, 0.3]


@pytest.mark.parametrize("kind", ["Linear", "Conv1d", "Conv2d", "Conv3d"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_every_block(name, kind):
    block = METHODS[name].block(kind)
    assert block.__name__.endswith(kind) and getattr(nn, block.__name__) is block


def test_a_block_that_is_not_written_is_named():
    with pytest.raises(ValueError, match=r"the method half has no math\.HalfConv2d: write it, or"):
        Method("half", "math:Half", 1.0).block("Conv2d")


def test_every_method_has_a_look_of_its_own():
    looks = [method.look for method in METHODS.values()]
    assert None not in looks and len({look.dashes for look in looks}) == len(looks)


def test_reading_the_table_needs_no_torch():
    code = "import cosnorm.methods, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def entry(name):
    return Method(name, "math:X", 1.0)


def test_a_name_is_taken_once_and_fit_for_flags_and_folders():
    table = Registry("method", [entry("a")])
    assert table.add(entry("b-2.x_y")).name in table
    with pytest.raises(ValueError, match="there is a method 'a' already: choose another name"):
        table.add(entry("a"))
    for name in ("", "-a", "a,b", "a/b", "a b", ".a", "a\n"):
        with pytest.raises(ValueError, match="the name of a method is made of letters"):
            table.add(entry(name))
    assert list(table) == ["a", "b-2.x_y"]


def test_an_unknown_name_is_told_those_there_are():
    table = Registry("method", [entry("a"), entry("b")])
    with pytest.raises(ValueError, match="method must be one of a, b; got 'c'"):
        table.named("c")
    assert table.named("a") is table["a"]
    assert "c" not in table


def test_code_by_name_or_itself():
    assert resolve("os.path:join") is __import__("os").path.join
    assert resolve(len) is len
