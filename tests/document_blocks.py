"""The blocks of code in the documents, and how each is run as printed.

A page is run from top to bottom in an empty folder, as a reader would: `python` blocks share their
names, `sh` blocks are given to bash, and a `python` block that begins with `# NAME.py` is that
file. A `text` block right after either is what it prints, with `…` for whatever differs from
machine to machine. Two comments before a block say more:

    <!-- not run: WHY -->        it is not run; the tests have a list of these
    <!-- numbers within 1.5 -->  of a `text` block: its numbers are measured, and may differ by that
"""

import contextlib
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(
    r"(?:^<!-- (?P<remark>not run: [^>]+|numbers within [\d.]+) -->\n+)?"
    r"^```(?P<language>[^\n]*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"[+−-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block. follows: nothing but a gap lies between the block before it and this one."""

    page: str
    line: int
    language: str
    code: str
    remark: str
    follows: bool

    @property
    def runs(self) -> bool:
        return self.language in ("python", "sh") and not self.remark

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in found]


def blocks_of(page: str, text: str | None = None) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8") if text is None else text
    found, end = [], 0
    for match in FENCE.finditer(text):
        follows = bool(found) and not text[end : match.start()].strip()
        line = text.count("\n", 0, match.start("language")) + 1
        code, remark = match["code"], match["remark"] or ""
        found.append(Block(page, line, match["language"], code, remark, follows))
        end = match.end()
    return found


def run_page(blocks: list[Block], folder: Path) -> int:
    """Run what is to be run, in `folder`, the current one; how many outputs were compared.

    Raises AssertionError, with page and line, where a block fails or prints something else.
    """
    names: dict = {"__name__": "__main__"}
    printed, compared = None, 0
    for block in blocks:
        if block.runs:
            printed = _python(block, names, folder) if block.language == "python" else _bash(block)
        elif block.language == "text" and block.follows and printed is not None:
            check_output(block, printed)
            printed, compared = None, compared + 1
        else:
            printed = None
    return compared


def _python(block: Block, names: dict, folder: Path) -> str:
    file = re.match(r"# ([\w/]+\.py)\n", block.code)
    if file:
        (folder / file[1]).write_text(block.code)
        return ""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(block.code, block.name, "exec"), names)
    except Exception as error:
        raise AssertionError(f"{block.name}: {type(error).__name__}: {error}") from error
    return printed.getvalue()


def _bash(block: Block) -> str:
    tools = str(Path(sys.executable).parent)
    unset = {"COSNORM_DATA", "COSNORM_EXTENSIONS"}
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    environment["PATH"] = os.pathsep.join([tools, environment["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.code], capture_output=True, text=True,
        env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{block.name}: exit {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout


def check_output(block: Block, printed: str) -> None:
    """Compare what a text block shows with what was printed."""
    expected, found = (re.sub(r" +$", "", t, flags=re.M).strip("\n") for t in (block.code, printed))
    if block.remark.startswith("numbers within"):
        close = float(block.remark.rsplit(" ", 1)[1])
        # A number of another width has more or fewer spaces before it.
        shown, got = (re.sub(" +", " ", NUMBER.sub("#", text)) for text in (expected, found))
        assert shown == got, f"{block.name}:\n{found}"
        pairs = zip(_numbers(expected), _numbers(found), strict=True)
        assert all(abs(one - two) <= close for one, two in pairs), f"{block.name}:\n{found}"
        return
    pattern = ".*?".join(re.escape(part) for part in expected.split("…"))
    assert re.fullmatch(pattern, found, re.DOTALL), f"{block.name}:\n{found}"


def _numbers(text: str) -> list[float]:
    return [float(number.replace("−", "-")) for number in NUMBER.findall(text)]
