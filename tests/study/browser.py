"""A real browser, driven over the WebDriver protocol with the standard library alone."""

import base64
import contextlib
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,1000",
]
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One session: each method is one WebDriver command (or one Chrome DevTools command)."""

    def __init__(self, port: int, profile: Path) -> None:
        self.root = f"http://127.0.0.1:{port}"
        options = {
            "binary": _needed("chromium"),
            "args": [*ARGUMENTS, f"--user-data-dir={profile}"],
        }
        capabilities = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        answer = self.send("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self.root += f"/session/{answer['sessionId']}"

    def send(self, verb: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, data, method=verb)
        request.add_header("Content-Type", "application/json")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(error.read().decode()) from None

    def open(self, page: Path) -> None:
        """Load the page; the logs then tell of it alone."""
        self.send("POST", "/url", {"url": "about:blank"})
        self.log("performance")
        self.log("browser")
        self.send("POST", "/url", {"url": page.resolve().as_uri()})
        # The answer has come before the page now and then, and scripts ran on the blank one.
        self.until("location.protocol === 'file:' && document.readyState === 'complete'")

    def run(self, script: str, *arguments: object) -> Any:
        return self.send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, condition: str) -> None:
        """Wait for what the browser does in its own time: media and toggle events."""
        end = time.monotonic() + 10
        while not self.run(f"return Boolean({condition})"):
            assert time.monotonic() < end, f"never became true: {condition}"
            time.sleep(0.02)

    def find(self, selector: str) -> dict[str, str]:
        return self.send("POST", "/element", {"using": "css selector", "value": selector})

    def click(self, selector: str) -> None:
        self.send("POST", f"/element/{self.find(selector)[ELEMENT]}/click", {})

    def type(self, selector: str, text: str) -> None:
        self.send("POST", f"/element/{self.find(selector)[ELEMENT]}/value", {"text": text})

    def pointer(self, *steps: dict[str, Any]) -> None:
        mouse = {
            "type": "pointer",
            "id": "mouse",
            "parameters": {"pointerType": "mouse"},
            "actions": list(steps),
        }
        self.send("POST", "/actions", {"actions": [mouse]})

    def touch(self, *fingers: list[dict[str, Any]]) -> None:
        """Fingers that move together, each by its own steps."""
        hands = [
            {
                "type": "pointer",
                "id": f"finger {number}",
                "parameters": {"pointerType": "touch"},
                "actions": steps,
            }
            for number, steps in enumerate(fingers)
        ]
        self.send("POST", "/actions", {"actions": hands})

    def devtools(self, command: str, **parameters: object) -> Any:
        return self.send("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def log(self, kind: str) -> list[dict[str, Any]]:
        return self.send("POST", "/se/log", {"type": kind})

    def screenshot(self, file: Path, whole: bool = False) -> None:
        answer = self.devtools("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        self.send("DELETE", "")


def move(x: float, y: float, milliseconds: int = 0) -> dict[str, Any]:
    return {"type": "pointerMove", "x": round(x), "y": round(y), "duration": milliseconds}


DOWN = {"type": "pointerDown", "button": 0}
UP = {"type": "pointerUp", "button": 0}


def scheme(value):
    return [{"name": "prefers-color-scheme", "value": value}]


def plot_point(page, x, y):
    """A point of the first chart's drawing area, in shares of its width and height."""
    box = page.run(
        "const r = document.querySelector('#chart-0 clipPath rect');"
        "const o = document.querySelector('#chart-0 svg').getBoundingClientRect();"
        "return [o.left + +r.getAttribute('x'), o.top + +r.getAttribute('y'),"
        " +r.getAttribute('width'), +r.getAttribute('height')]"
    )
    return box[0] + x * box[2], box[1] + y * box[3]


def labels(page, anchor):
    """The numbers along an axis: x for anchor middle, y for anchor end."""
    texts = page.run(
        "return [...document.querySelectorAll('#chart-0 .axes text')]"
        ".filter(t => t.getAttribute('text-anchor') === arguments[0] && !t.classList.length)"
        ".map(t => t.textContent)",
        anchor,
    )
    return [float(text.replace("k", "e3")) for text in texts]


def choose(page, name, value):
    page.run(
        "const s = document.querySelector(`#chart-0 [data-choice=${arguments[0]}] select`);"
        "s.value = arguments[1]; s.dispatchEvent(new Event('change'));",
        name,
        value,
    )


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a new, empty profile in `folder`; gone with the block, whatever happens."""
    driver = subprocess.Popen(
        [_needed("chromedriver"), "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        session = Browser(_port(driver), folder / "profile")
        try:
            yield session
        finally:
            session.close()
    finally:
        driver.terminate()
        driver.wait(timeout=30)
        assert driver.stdout is not None
        driver.stdout.close()


def _needed(program: str) -> str:
    """The program's path; a test that needs a browser fails without one, it does not skip."""
    path = shutil.which(program)
    assert path, f"{program} is needed by this test: apt-get install chromium chromium-driver"
    return path


def _port(driver: subprocess.Popen[bytes]) -> int:
    """The port that the driver chose, from the line in which it says so."""
    assert driver.stdout is not None
    end = time.monotonic() + 30
    while time.monotonic() < end:
        line = driver.stdout.readline().decode()
        if "started successfully on port" in line:
            return int(line.split()[-1].rstrip("."))
    raise AssertionError("chromedriver did not start within 30 s")
