"""What Triton compiles is counted."""

from real_triton import output_of

COMPILES = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from cosnorm.ops.triton.compilations import compilations

@triton.jit
def once(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), 1.0)

with compilations() as names:
    for block in (16, 32, 16):
        source = ASTSource(once, {"x_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"},
                           constexprs={(2,): block})
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
print(*names)
"""


def test_what_triton_compiles_is_counted(tmp_path):
    program = tmp_path / "program.py"  # Triton reads a kernel's source from its file
    program.write_text(COMPILES)
    run = f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
    assert output_of(run) == ["once", "once", "once"]
