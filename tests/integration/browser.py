"""A headless Chromium over its debugging pipe: pages, their console, what they ask the network for, screenshots. Standard library only."""

import base64
import json
import os
import shutil
import subprocess
import tempfile

PATIENCE = 120  # seconds for one answer, on a busy machine, too


def program():
    """The browser, or None: Debian's package `chromium` has it."""
    return os.environ.get("TRIREME_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """Speaks the DevTools protocol: texts that end in a zero byte, on descriptors 3 (to it) and 4 (from it)."""

    def __init__(self):
        to_read, self.to = os.pipe()
        self.back, back_write = os.pipe()
        self.profile = tempfile.TemporaryDirectory(prefix="trireme-chromium-", ignore_cleanup_errors=True)
        # The shell puts the descriptors where the browser looks for them.
        command = [program(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                   "--force-color-profile=srgb", "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "about:blank"]
        self.process = subprocess.Popen(["sh", "-c", f'exec "$@" 3<&{to_read} 4>&{back_write}', "sh", *command], pass_fds=(to_read, back_write),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(back_write)
        self.waiting, self.number, self.session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        self.session = None
        try:
            self.call("Browser.close")
            self.process.wait(PATIENCE)
        except (OSError, EOFError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.back)
        self.profile.cleanup()

    def read(self):
        while b"\0" not in self.waiting:
            part = os.read(self.back, 1 << 20)
            if not part:
                raise EOFError("the browser has ended")
            self.waiting += part
        text, self.waiting = self.waiting.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters} | ({"sessionId": self.session} if self.session else {})
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") != self.number:
                self.events.append(answer)
                continue
            if "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            return answer["result"]

    def open(self, path, width=1280, scheme="light"):
        """The page at `path`; what it complains of and asks for is in `events` from here on."""
        self.events = []
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.read())

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    def complaints(self):
        """Texts of the console, of exceptions and of the browser's own log."""
        out = []
        for event in self.events:
            kind, what = event.get("method"), event.get("params", {})
            if kind == "Runtime.consoleAPICalled":
                out.append(str(what["args"]))
            elif kind == "Runtime.exceptionThrown":
                out.append(str(what["exceptionDetails"]))
            elif kind == "Log.entryAdded":
                out.append(what["entry"]["text"])
        return out

    def requests(self):
        return [event["params"]["request"]["url"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]

    def screenshot(self, path, height):
        width = self.evaluate("document.documentElement.clientWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))
