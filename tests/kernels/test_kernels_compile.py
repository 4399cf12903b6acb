"""The kernels go through Triton's real compiler, down to machine code, without a GPU."""

import pytest
from real_triton import output_of

pytestmark = pytest.mark.slow

PROGRAM = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from cosnorm.kernels import fused

WIDE = {"mean_ptr", "square_ptr", "stats_ptr", "total_ptr", "rnorm_ptr", "field_ptr", "dscale_ptr",
        "mean_map", "square_map", "rw_ptr", "next_mean_ptr", "next_square_ptr", "next_field_ptr"}

def kind(name, constants):
    if name in constants:
        return "constexpr"
    if name.endswith(("_ptr", "_map")):
        return "*fp32" if name in WIDE else "*bf16"
    return "fp32" if name == "gain" else "i32"

def build(kernel, **constants):
    names = kernel.arg_names
    source = ASTSource(
        kernel,
        {name: kind(name, constants) for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
    )
    assert compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
    print(kernel.__name__)

for flag in (False, True):
    both = {"CENTERED": flag, "BIAS": flag, "BP": 8, "BC": 512}
    parts = {**both, "FIELDS": True, "UNITS": True, "WHOLE": flag, "BW": 1024}
    build(fused.prepare, **parts, EXACT=not flag, RAW=not flag)
    grad = {name: value for name, value in parts.items() if name != "FIELDS"}
    scale = {"RELU": flag, "SCALE": 1 + flag, "RAW": not flag}
    build(fused.start_grad, **grad, **scale, COSINE=not flag, DSCALE=True)
    build(fused.end_grad, **parts, RAW=not flag, TAPS=16)
    told = {"ONCE": flag, "NEXT": flag, "EXACT": False}
    build(fused.finish, **both, **scale, **told, KEEP=not flag, READY=flag, TAPS=16)
    build(fused.link_grad, CENTERED=flag, RAW=not flag, TAPS=16, BP=8, BC=512)
    build(fused.windows, CENTERED=flag, BIAS=flag, TAPS=16, BP=64)
"""


def test_every_kernel_compiles_for_a_gpu():
    assert len(output_of(PROGRAM)) == 12
