"""The page on conversion: its code runs and its table is what is printed."""

import re
from pathlib import Path

from cosnorm.conversion import HEAD_SCALE

PAGE = Path(__file__).parents[2] / "docs" / "conversion.md"


def test_the_code_runs_and_prints_what_the_page_shows():
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    for language, code in blocks:
        if language == "python":
            exec(code.replace("print(account)", ""), names)
    (shown,) = [text for language, text in blocks if language == "text"]
    assert str(names["account"]) == shown.strip()


def test_the_scale_is_the_one_the_page_names():
    assert f"starts at {HEAD_SCALE:g}\n" in PAGE.read_text(encoding="utf-8")
