import pytest
from browser import browser


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """A browser for all tests of a file. Without one they fail."""
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened
