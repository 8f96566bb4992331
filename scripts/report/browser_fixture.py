"""A headless Chromium for tests, driven over the DevTools protocol.

The browser resolves no host name and each page records every request, console message and exception.
    with Browser() as page:
        page.open(Path("report.html").as_uri())
        page.evaluate("document.title")
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import websocket

TIMEOUT_S = 90.0


def chromium() -> str | None:
    """$CHROMIUM, else Debian's chromium or a chrome on the path."""
    stated = os.environ.get("CHROMIUM")
    if stated:
        return shutil.which(stated)
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


class BrowserError(Exception):
    pass


class Browser:
    def __init__(self) -> None:
        binary = chromium()
        if binary is None:
            raise BrowserError("no Chromium found: apt-get install chromium, or set CHROMIUM")
        self.profile = tempfile.mkdtemp(prefix="longnet-browser-")
        self.events: list[dict[str, Any]] = []
        self.next_id = 0
        self.process = subprocess.Popen(
            [
                binary,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--disable-dev-shm-usage",
                "--disable-extensions",
                "--disable-component-update",
                "--disable-sync",
                "--no-first-run",
                "--mute-audio",
                "--hide-scrollbars",
                "--no-proxy-server",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                "--remote-debugging-port=0",
                f"--user-data-dir={self.profile}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self.socket = websocket.create_connection(
                self._page_address(), timeout=TIMEOUT_S, suppress_origin=True, http_no_proxy=["127.0.0.1"]
            )
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def _page_address(self) -> str:
        port_file = Path(self.profile) / "DevToolsActivePort"
        wait_for(lambda: port_file.is_file() and port_file.read_text().count("\n") >= 1, "the browser to start")
        port = port_file.read_text().split()[0]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        targets: list[dict[str, Any]] = []

        def listed() -> bool:
            with opener.open(f"http://127.0.0.1:{port}/json", timeout=10) as reply:
                targets[:] = [t for t in json.load(reply) if t.get("type") == "page"]
            return bool(targets)

        wait_for(listed, "a page")
        return targets[0]["webSocketDebuggerUrl"]

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if getattr(self, "socket", None):
            self.socket.close()
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(timeout=10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.next_id += 1
        self.socket.send(json.dumps({"id": self.next_id, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.next_id:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def evaluate(self, expression: str) -> Any:
        reply = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            raise BrowserError(json.dumps(reply["exceptionDetails"])[:2000])
        return reply["result"].get("value")

    def open(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self.events.clear()
        self.call("Page.navigate", url=address)
        wait_for(lambda: self.evaluate("document.readyState") == "complete", "the page to load")

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path, whole_page: bool = True) -> None:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        reply = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, **({"clip": clip} if whole_page else {})
        )
        path.write_bytes(base64.b64decode(reply["data"]))

    def requests(self) -> list[str]:
        self.evaluate("0")  # collects the events that are still under way
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """Exceptions, console errors and warnings, log entries such as a violated policy."""
        self.evaluate("0")
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(
                    f"exception: {params['exceptionDetails'].get('exception', {}).get('description', params['exceptionDetails'].get('text'))}"
                )
            elif method == "Runtime.consoleAPICalled" and params.get("type") in ("error", "warning", "assert"):
                found.append(f"console: {[a.get('value', a.get('description')) for a in params.get('args', [])]}")
            elif method == "Log.entryAdded" and params["entry"].get("level") in ("error", "warning"):
                found.append(f"log: {params['entry'].get('text')}")
        return found


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise BrowserError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.05)
