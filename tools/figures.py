"""The figures of the documents: docs/figures/NAME.png, from the files in results/.

A figure's pixels depend on the machine that draws it, so what is compared is the digest, beside it,
of the numbers that it was drawn from.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from cosnorm.study.claims import study_named
from tools import choices, optimisers, reproduction, studies

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"


def drawings() -> Iterator[tuple[str, object, Callable[[], bytes]]]:
    """Every figure: its name, the numbers in it, and how it is drawn."""
    yield from advice()
    for result in studies.results():
        yield result["study"], result["rows"], partial(_study, result)
    for name in reproduction.NAMES:
        section = reproduction.section(name)
        if section is not None:
            lines = [[run.name, [dict(line) for line in run.metrics]] for run in section.runs]
            yield name, lines, partial(_curves, name)


def advice() -> Iterator[tuple[str, object, Callable[[], bytes]]]:
    """What the pages on choices and optimisers show."""
    yield "rates", choices.rate_rows(), choices.rate_figure
    measured = json.loads(optimisers.RESULT.read_text())
    yield "optimisers", [measured["ways"], measured["rule"]], partial(optimisers.drawn, measured)


def _study(result: dict) -> bytes:
    from cosnorm.study.claims.figure import figure_files

    return figure_files(study_named(result["study"]).panels(result["rows"]))[".png"]


def _curves(name: str) -> bytes:
    from cosnorm.study.report.figures import figure_files

    section = reproduction.section(name)
    assert section is not None
    return figure_files(section)[".png"]


def draw(check: bool) -> list[str]:
    """Draw every figure whose numbers have changed, or only look; returns their names."""
    stale = []
    for name, numbers, made in drawings():
        digest = hashlib.sha256(json.dumps(numbers).encode()).hexdigest() + "\n"
        figure, mark = FIGURES / f"{name}.png", FIGURES / f"{name}.sha256"
        if figure.exists() and mark.exists() and mark.read_text() == digest:
            continue
        stale.append(figure.name)
        if not check:
            FIGURES.mkdir(exist_ok=True)
            figure.write_bytes(made())
            mark.write_text(digest)
    return stale
