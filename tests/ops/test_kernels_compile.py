"""The kernels go through Triton's real compiler, down to machine code, without a GPU."""

import pytest
from real_triton import output_of

pytestmark = pytest.mark.slow

PROGRAM = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from cosnorm.ops.triton import kernels

WIDE = {"kept_ptr", "maps_ptr", "total_ptr", "shares_ptr", "w_ptr", "dw_ptr"}

def kind(name, constants):
    if name in constants:
        return "constexpr"
    if name.endswith("_ptr"):
        return "*fp32" if name in WIDE else "*bf16"
    return "fp32" if name in ("gain", "lift") else "i32"

def build(kernel, **constants):
    names = kernel.arg_names
    constants = {name: value for name, value in constants.items() if name in names}
    source = ASTSource(
        kernel,
        {name: kind(name, constants) for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
    )
    assert compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
    print(kernel.__name__)

common = {"FIELDS": True, "UNITS": True, "BW": 1024, "ALIGN": 8, "DSCALE": True, "DBIAS": True}
LAYER = (kernels.prepare, kernels.finish, kernels.start_grad, kernels.end_grad)
for flag in (False, True):
    for lanes, taps, last in ((False, 16, flag), (True, 0, True), (False, 0, False)):
        constants = {
            **common, "LANES": lanes, "TAPS": taps, "LAST": last, "CENTERED": flag, "BIAS": flag,
            "RAW": not flag, "EXACT": not flag, "ACT": 1 + flag, "VALUE": not flag,
            "SCALE": 1 + flag, "KEEP": flag, "STORE": True, "POINT": False, "THIN": False,
            "LEAN": False, "SINGLE": flag, "FOLDED": flag, "BP": 32, "BC": 64,
        }
        for kernel in LAYER:
            build(kernel, **constants)
            if kernel is not kernels.start_grad:
                build(kernel, **{**constants, "POINT" if taps else "THIN": True})
            if "LEAN" in kernel.arg_names:
                build(kernel, **{**constants, "POINT": True, "LEAN": True, "SCALE": 0})
        build(kernels.spread, **constants)
    for known in (False, True):
        rows = {**common, "CENTERED": flag, "BIAS": flag, "EXACT": not flag, "BP": 32, "BC": 64}
        build(kernels.normalise, **rows, ROWS=True, KNOWN=known)
    build(kernels.end_early, **rows)
"""


def test_every_kernel_compiles_for_a_gpu():
    assert len(output_of(PROGRAM)) == 66
