"""What the documents say: numbers from results, links that lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import cosnorm

ROOT = Path(__file__).resolve().parent.parent


def test_tables_are_those_of_the_results():
    done = subprocess.run(
        [sys.executable, "-m", "tools.tables", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_contributing_says_to_touch_is_there_and_little():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.split("| what | files in")[1].split("\n\n")[0]
    rows = [row.split("|") for row in table.splitlines()[2:]]
    assert len(rows) == 8
    for _, what, files, *_ in rows:
        named = re.findall(r"`([\w/]+(?:\.py|/))`", files)
        assert 2 <= len(named) <= 4, what
        for path in named:
            assert (ROOT / "src" / "cosnorm" / path).exists(), path


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (ROOT / target).exists(), target


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == cosnorm.__version__
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
