"""A headless Chromium driven over the DevTools protocol's pipe, with the standard library alone.

Chromium reads commands on its file descriptor 3 and writes answers and events on 4, each a JSON object ended by a zero
byte. One browser serves many pages; every page is a target of its own.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import selectors
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--remote-debugging-pipe",
)


class PageError(AssertionError):
    """The page threw, a command failed, or nothing came in time."""


class Browser:
    """One Chromium process. ``close`` ends it and all that it started."""

    def __init__(self, program: str, profile: Path, flags: Sequence[str] = (), timeout: float = 60.0) -> None:
        self.timeout = timeout
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        # Above 10, so that neither is 3 or 4 itself before it becomes that.
        high_read, high_write = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_read, to_write))
        actions = [
            (os.POSIX_SPAWN_DUP2, high_read, 3),
            (os.POSIX_SPAWN_DUP2, high_write, 4),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0o600),
            (os.POSIX_SPAWN_OPEN, 2, str(profile.with_suffix(".log")), os.O_WRONLY | os.O_CREAT, 0o600),
        ]
        command = [program, *FLAGS, f"--user-data-dir={profile}", *flags, "about:blank"]
        self.pid = os.posix_spawnp(program, command, os.environ, file_actions=actions, setpgroup=0)
        for fd in (to_read, to_write, high_read, high_write):
            os.close(fd)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._in, selectors.EVENT_READ)
        self._buffer = b""
        self._count = 0
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """One command's result."""
        self._count += 1
        number = self._count
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        deadline = time.monotonic() + self.timeout
        while True:
            found = self._next(deadline, method)
            if found.get("id") == number:
                if "error" in found:
                    raise PageError(f"{method}: {found['error'].get('message')}")
                result: dict[str, Any] = found.get("result", {})
                return result
            if "method" in found:
                self.events.append(found)

    def _next(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                raise PageError(f"{what}: no answer within {self.timeout:g} s")
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise PageError(f"{what}: the browser ended")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def page(self, url: str, width: int = 1400, height: int = 900, *, media: str = "", dark: bool = False) -> Page:
        """A new page at ``url``, loaded."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.send("Emulation.setEmulatedMedia", media=media, features=[scheme])
        page.go(url)
        return page

    def close(self) -> None:
        """Ends the process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._selector.close()
        for fd in (self._in, self._out):
            os.close(fd)


class Page:
    """One page. ``js`` runs an expression in it and gives its JSON value; promises are awaited."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self.browser = browser
        self.session = session
        self.target = target

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command to this page."""
        return self.browser.send(method, self.session, **parameters)

    def go(self, url: str) -> None:
        """Loads ``url`` and waits until the page says that it is ready."""
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def js(self, expression: str) -> Any:
        """The value of ``expression``; PageError where it throws."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise PageError(details.get("exception", {}).get("description") or details.get("text"))
        return found["result"].get("value")

    def until(self, condition: str) -> Any:
        """Waits until ``condition`` is true; its value. PageError at once where the page has thrown."""
        deadline = time.monotonic() + self.browser.timeout
        while True:
            value = self.js(condition)
            if value:
                return value
            thrown = self.thrown()
            if thrown:
                raise PageError(f"{condition}: {thrown[0]}")
            if time.monotonic() > deadline:
                raise PageError(f"never true: {condition}")
            time.sleep(0.02)

    def key(self, key: str, text: str = "") -> None:
        """Presses and releases a key: ``ArrowDown``, ``Enter``, ``/`` ..."""
        codes = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}
        text = text or (key if len(key) == 1 else "\r" if key == "Enter" else "")
        common = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0]) if len(key) == 1 else 0)}
        self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, words: str) -> None:
        """Types ``words`` where the focus is."""
        self.send("Input.insertText", text=words)

    def click(self, selector: str) -> None:
        """Clicks the middle of the first element that ``selector`` finds, scrolled into sight."""
        found = self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null;"
            "e.scrollIntoView({block: 'center', inline: 'center'}); const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        if found is None:
            raise PageError(f"nothing to click: {selector}")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=found[0], y=found[1], button="left", clickCount=1)

    def thrown(self) -> list[str]:
        """Exceptions that nobody caught."""
        events = (e for e in self.browser.events if e.get("sessionId") == self.session)
        found = (e["params"]["exceptionDetails"] for e in events if e["method"] == "Runtime.exceptionThrown")
        return [details.get("exception", {}).get("description") or details["text"] for details in found]

    def problems(self) -> list[str]:
        """What was thrown, logged as an error, refused by the policy or requested from elsewhere, up to now."""
        self.js("0")
        out = self.thrown()
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            method, data = event["method"], event.get("params", {})
            if method == "Log.entryAdded" and data["entry"]["level"] in ("error", "warning"):
                out.append(data["entry"]["text"])
            elif method == "Network.requestWillBeSent":
                url = data["request"]["url"]
                if not url.startswith(("file:", "data:", "about:")):
                    out.append(f"requested {url}")
        return out

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Writes a PNG of what is shown, or of the whole page."""
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path: Path, **options: Any) -> None:
        """Prints the page to a PDF file."""
        path.write_bytes(base64.b64decode(self.send("Page.printToPDF", printBackground=False, **options)["data"]))

    def close(self) -> None:
        """Closes the page."""
        self.browser.send("Target.closeTarget", targetId=self.target)


#: What the fixture ``opened`` is.
Open = Callable[..., Page]


@contextlib.contextmanager
def alone(program: str) -> Iterator[tuple[Browser, Path]]:
    """A browser and a folder for its pages, both gone at the end."""
    with tempfile.TemporaryDirectory(prefix="capmatrix-page-", ignore_cleanup_errors=True) as name:
        browser = Browser(program, Path(name) / "profile")
        try:
            yield browser, Path(name)
        finally:
            browser.close()
