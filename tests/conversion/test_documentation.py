"""The page on conversion names the scale that is used. Its code is run with that of all pages."""

from pathlib import Path

from cosnorm.conversion import HEAD_SCALE

PAGE = Path(__file__).parents[2] / "docs" / "conversion.md"


def test_the_scale_is_the_one_the_page_names():
    assert f"starts at {HEAD_SCALE:g}\n" in PAGE.read_text(encoding="utf-8")
