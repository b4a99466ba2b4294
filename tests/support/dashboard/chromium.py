"""A headless Chromium, driven through its DevTools protocol: pages are tested as people see them.

Only Debian's `chromium-headless-shell` (or `chromium`) and aiohttp are needed.  Keys and clicks are
sent as input events, so that focus, disabled buttons and dialogs behave as for a person; console
output, failed loads and refusals by the content security policy are collected.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
START_S, WAIT_S = 30.0, 10.0
KEYS = {
    "Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), " ": (32, " "),
    "ArrowDown": (40, ""), "Backspace": (8, ""),
}  # fmt: skip

Found = dict[str, Any]


def executable() -> str | None:
    """The path of this machine's Chromium; None if it has none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class PageFailed(AssertionError):
    """The page threw, or never showed what the test waits for."""


class Browser:
    """One page.  Every call returns when the browser has answered it."""

    def __init__(self, runner: asyncio.Runner, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._runner, self._socket = runner, socket
        self._session = ""
        self._count = 0
        self.complaints: list[str] = []
        """Errors and warnings of the console, exceptions, failed loads."""
        self.dialogs = 0
        """How often a script opened an alert, as injected markup does."""

    # -- the protocol ----------------------------------------------------------------------------

    def call(self, method: str, **params: object) -> Found:
        """One command of the protocol."""
        return self._runner.run(self._call(method, params))

    async def _call(self, method: str, params: dict[str, object]) -> Found:
        self._count += 1
        number = self._count
        message: Found = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        await self._socket.send_json(message)
        async with asyncio.timeout(START_S):
            while True:
                answer = await self._socket.receive_json()
                if answer.get("id") == number:
                    break
                self._note(answer)
        if "error" in answer:
            raise PageFailed(f"{method}: {answer['error']}")
        result: Found = answer["result"]
        return result

    def _note(self, event: Found) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                text = details.get("exception", {}).get("description", details["text"])
                self.complaints.append(f"exception: {text}")
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                said = " ".join(str(one.get("value")) for one in params["args"])
                self.complaints.append(f"console: {said}")
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                entry = params["entry"]
                self.complaints.append(f"log: {entry['text']} {entry.get('url', '')}")
            case "Page.javascriptDialogOpening":
                self.dialogs += 1
            case _:
                pass

    def attach(self) -> None:
        """Open a page and listen to it."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    # -- what a person does ----------------------------------------------------------------------

    def open(self, url: str) -> None:
        """Go to an address."""
        self.call("Page.navigate", url=url)

    def press(self, *keys: str) -> None:
        """Press keys by name, in turn."""
        for key in keys:
            code, text = KEYS[key]
            event: Found = {"key": key, "code": key, "windowsVirtualKeyCode": code}
            down = "keyDown" if text else "rawKeyDown"
            self.call("Input.dispatchKeyEvent", type=down, text=text, **event)
            self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text: str) -> None:
        """Type into the focused element."""
        self.call("Input.insertText", text=text)

    def click(self, selector: str, text: str = "") -> None:
        """Click the middle of the first visible element, with `text` in it if given."""
        where = f"""(() => {{
            const found = [...document.querySelectorAll({json.dumps(selector)})].find((one) =>
                one.checkVisibility() && one.textContent.includes({json.dumps(text)}));
            if (!found) return null;
            found.scrollIntoView({{block: "center", behavior: "instant"}});
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
        place, before = self.wait(where), None
        while place != before:  # content filled in above moves it
            time.sleep(0.1)
            place, before = self.wait(where), place
        x, y = place
        button: Found = {"x": x, "y": y, "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **button)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **button)

    def fill(self, label: str, text: str) -> None:
        """Type into the visible field with this label."""
        self.wait(f"""(() => {{
            const label = [...document.querySelectorAll("label")].find((one) =>
                one.checkVisibility() && one.textContent === {json.dumps(label)});
            if (!label) return false;
            const field = document.getElementById(label.htmlFor);
            field.focus();
            field.select?.();
            return true;
        }})()""")
        self.type(text)

    # -- what a person sees ----------------------------------------------------------------------

    def evaluate(self, script: str) -> Any:  # noqa: ANN401  # what the page has
        """The value of an expression, or of the promise that it returns."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise PageFailed(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait(self, script: str, seconds: float = WAIT_S) -> Any:  # noqa: ANN401
        """Return the expression's value as soon as it is true."""
        deadline = time.monotonic() + seconds
        value = f"((found) => (found instanceof Node ? true : found))({script})"
        while True:
            with suppress(PageFailed):
                if found := self.evaluate(value):
                    return found
            if time.monotonic() > deadline:
                shown = self.evaluate("document.body.innerText")
                raise PageFailed(f"never true: {script}\n{shown}\n{self.complaints}")
            time.sleep(0.02)

    def wait_text(self, text: str) -> None:
        """Wait until the page shows this text."""
        self.wait(f"document.body.innerText.includes({json.dumps(text)})")

    def screen(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Set the size of the screen and the user's color scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """Save a picture of the whole page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A started browser with one blank page; it is ended with the block."""
    program = executable()
    assert program is not None, "ask executable() first"
    command = [
        program, "--headless", "--remote-debugging-port=0", f"--user-data-dir={profile}",
        "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--mute-audio",
        "--disable-background-networking", "--disable-component-update", "about:blank",
    ]  # fmt: skip
    if os.geteuid() == 0:
        command.insert(1, "--no-sandbox")  # Chromium's own sandbox does not start as root
    with (profile.parent / "chromium.log").open("wb") as log:
        # Debian's command is a shell script that stays, so the browser is ended with its group.
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        address = _address(profile / "DevToolsActivePort", process)
        with asyncio.Runner() as runner:
            session, socket = runner.run(_connect(address))
            try:
                page = Browser(runner, socket)
                page.attach()
                yield page
            finally:
                runner.run(session.close())
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _address(file: Path, process: subprocess.Popen[bytes]) -> str:
    """The address at which the started browser listens for us."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError, ValueError):
            port, path = file.read_text(encoding="ascii").split("\n")[:2]
            return f"ws://127.0.0.1:{int(port)}{path}"
        time.sleep(0.05)
    raise PageFailed(f"Chromium did not start (exit {process.poll()}): see chromium.log")


async def _connect(
    address: str,
) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
    session = aiohttp.ClientSession()
    return session, await session.ws_connect(address, max_msg_size=0)
