"""The built site: nothing from elsewhere, and in a real browser what a reader sees of it."""

import inspect
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import pytest
from browser import browser, scheme

ROOT = Path(__file__).resolve().parent.parent
WIDTHS = {"phone": 390, "desktop": 1280}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    tool = Path(sys.executable).with_name("sphinx-build")
    done = subprocess.run(
        [tool, "-EaqW", "--keep-going", "-d", out / "doctrees", ROOT / "docs", out / "html"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out / "html"


class Fetched(HTMLParser):
    """What a browser fetches for a page by itself: not links, which a reader has to follow."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "link" and values.get("rel") not in ("next", "prev", "search", "index", "author"):
            self.found.append(values.get("href"))
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed", "object"):
            self.found += [values.get(name) for name in ("src", "srcset", "data") if name in values]


def test_nothing_comes_from_elsewhere(site):
    pages = sorted(site.glob("**/*.html"))
    assert len(pages) > 15
    for page in pages:
        parser = Fetched()
        parser.feed(page.read_text(encoding="utf-8"))
        assert parser.found, page
        for address in filter(None, parser.found):
            assert not re.match(r"(\w+:)?//", address), f"{page.name} fetches {address}"
            file = (page.parent / address.partition("?")[0]).resolve()
            assert file.is_file(), f"{page.name} lacks {address}"
    for style in site.glob("**/*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", style.read_text()), style


def test_every_public_name_has_its_entry(site):
    import cosnorm.functional
    import cosnorm.nn
    from cosnorm import study

    page = (site / "api.html").read_text(encoding="utf-8")
    names = [f"cosnorm.nn.{name}" for name in cosnorm.nn.__all__]
    names += [f"cosnorm.functional.{name}" for name in cosnorm.functional.__all__]
    names += [f"cosnorm.study.{name}" for name in study.__all__]
    names += ["cosnorm.convert", "cosnorm.fold", "cosnorm.set_backend"]
    missing = [name for name in names if f'id="{name}"' not in page]
    assert not missing


def test_arguments_are_listed_as_they_are_named(site):
    """A list made of prose has words for names."""
    page = (site / "api.html").read_text(encoding="utf-8")
    places = re.split(r'<dt class="sig[^>]* id="([^"]+)">', page)
    checked = 0
    for place, text in zip(places[1::2], places[2::2], strict=True):
        found = re.search(r"<dt[^>]*>Parameters<.*?</dd>", text, re.DOTALL)
        if found is None:
            continue
        wanted = named(place)
        for names in re.findall(
            r"<li><p><strong>(.*?)</strong>|<dd[^>]*><p><strong>(.*?)</strong>", found[0]
        ):
            for name in "".join(names).split(", "):
                assert name in wanted, f"{place} lists {name!r}"
                checked += 1
    assert checked > 60


def named(place):
    """The arguments of a thing, or the attributes of a class."""
    for depth in range(place.count("."), 0, -1):
        parts = place.split(".")
        try:
            found = import_module(".".join(parts[:depth]))
        except ModuleNotFoundError:
            continue
        for part in parts[depth:]:
            found = getattr(found, part)
        own = {*dir(found), *found.__annotations__} if isinstance(found, type) else ()
        return {*inspect.signature(found).parameters, *own}
    raise LookupError(place)


def test_values_have_their_own_text(site):
    page = (site / "api.html").read_text(encoding="utf-8")
    for name, text in (("conversion.HEAD_SCALE", "converted head"), ("study.METRICS", "a curve")):
        place = page.index(f'id="cosnorm.{name}"')
        assert text in page[place : page.index("</dd>", place)]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def shown(session, width, look):
    height, phone = (844, True) if width < 500 else (1000, False)
    session.devtools(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=height, deviceScaleFactor=1, mobile=phone,
    )  # fmt: skip
    session.devtools("Emulation.setEmulatedMedia", features=scheme(look))


@pytest.mark.slow
@pytest.mark.parametrize("look", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_every_page_fits_is_silent_and_alone(site, session, width, look):
    shown(session, width, look)
    for page in sorted(site.glob("*.html")):
        session.open(page)
        wide, window = session.run("return [document.documentElement.scrollWidth, innerWidth]")
        assert wide <= window, f"{page.name} is {wide} wide in a window of {window}"
        assert session.log("browser") == [], page.name
        events = [json.loads(entry["message"])["message"] for entry in session.log("performance")]
        addresses = {
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        }
        assert addresses
        assert all(a.startswith((site.as_uri(), "data:")) for a in addresses), addresses
        dark = session.run(
            "const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/\\d+/g);"
            "return +r + +g + +b < 380"
        )
        assert dark == (look == "dark"), page.name


@pytest.mark.slow
def test_code_is_coloured_and_fits_its_column(site, session):
    shown(session, WIDTHS["desktop"], "light")
    for name in ("index", "swap", "convert", "compare", "api"):
        session.open(site / f"{name}.html")
        found = session.run(
            "return [...document.querySelectorAll('.highlight pre')].map(p =>"
            " [p.scrollWidth - p.clientWidth, new Set([...p.querySelectorAll('span')]"
            ".map(s => getComputedStyle(s).color)).size])"
        )
        assert found, name
        assert max(over for over, _ in found) <= 0, name
        assert max(colours for _, colours in found) >= 3, name


@pytest.mark.slow
def test_the_search_finds_without_a_server(site, session):
    shown(session, WIDTHS["desktop"], "light")
    session.open(site / "index.html")
    session.type(".sidebar-search", "PearsonLinear\ue007")
    session.until("document.querySelectorAll('#search-results ul.search li a').length >= 2")


@pytest.mark.slow
def test_the_button_makes_it_dark(site, session):
    shown(session, WIDTHS["desktop"], "light")
    session.open(site / "index.html")
    for _ in range(3):
        session.click(".content-icon-container .theme-toggle")
        if session.run("return document.body.dataset.theme") == "dark":
            break
    assert (
        session.run("return getComputedStyle(document.body).backgroundColor")
        != "rgb(255, 255, 255)"
    )
    session.run("localStorage.clear()")
