"""Tests of the DevTools pipe that Playwright's driver and this process share."""

import asyncio
import json
import os
import shlex
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from playwright.async_api import Error

from env_adapters.webarena.browser.chromium import find_chromium
from env_adapters.webarena.browser.devtools import FIRST_ID, DevToolsPipe
from env_adapters.webarena.browser.driver import Driver
from env_adapters.webarena.browser.handover import Handover, _receive_sockets
from tests.support.web import needs_chromium
from verl_agent.errors import ConfigError, EnvError

ROOT, PAGE = "R" * 32, "P" * 32


class Sum(msgspec.Struct):
    sum: int


class Side:
    """The other end of a connection of the pipe."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self._read = b""

    async def send(self, *messages):
        await asyncio.get_running_loop().sock_sendall(self.ours, b"".join(_encode(one) + b"\0" for one in messages))

    async def receive(self):
        """Return the next message; None at the end of the connection."""
        while b"\0" not in self._read:
            async with asyncio.timeout(5):
                data = await asyncio.get_running_loop().sock_recv(self.ours, 100)
            if not data:
                return None
            self._read += data
        message, _, self._read = self._read.partition(b"\0")
        return json.loads(message)


def _encode(message):
    return (
        message
        if isinstance(message, bytes)
        else json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
    )


@asynccontextmanager
async def connected():
    """Yield a pipe, the driver's commands and events, the browser, and a session with a page."""
    commands, events, browser = Side(), Side(), Side()
    pipe = DevToolsPipe()
    await pipe.connect((commands.theirs, events.theirs), browser.theirs)
    attaching = asyncio.ensure_future(pipe.attach("target"))
    to_browser = await browser.receive()
    assert to_browser["method"] == "Target.attachToBrowserTarget"
    await browser.send({"id": to_browser["id"], "result": {"sessionId": ROOT}})
    to_target = await browser.receive()
    assert to_target["sessionId"] == ROOT and to_target["params"] == {"targetId": "target", "flatten": True}
    await browser.send(
        {"method": "Target.attachedToTarget", "params": {"sessionId": PAGE}, "sessionId": ROOT},
        {"id": to_target["id"], "result": {"sessionId": PAGE}, "sessionId": ROOT},
    )
    try:
        yield pipe, commands, events, browser, await attaching
    finally:
        pipe.close()
        for side in (commands, events, browser):
            side.ours.close()


def in_pipe(check):
    async def run():
        async with connected() as parts:
            await check(*parts)

    asyncio.run(run())


def test_messages_of_the_driver_pass_unchanged():
    async def check(pipe, commands, events, browser, session):
        sent = {"id": 7, "method": "Page.enable", "params": {}, "sessionId": "D" * 32}
        await commands.send(sent)
        assert await browser.receive() == sent
        replies = [
            {"id": 7, "result": {"text": "x" * 500_000}, "sessionId": "D" * 32},
            {"method": "Runtime.consoleAPICalled", "params": {"text": "\u00e9" * 1000}},
            {"id": FIRST_ID // 10**6, "result": {}},  # starts like the ids of this process
            {"method": "Target.detachedFromTarget", "params": {"sessionId": "D" * 32, "targetId": "t"}},
        ]
        sending = asyncio.ensure_future(browser.send(*replies))
        assert [await events.receive() for _ in replies] == replies
        await sending

    in_pipe(check)


def test_driver_receives_no_message_of_own_sessions():
    async def check(pipe, commands, events, browser, session):
        sending = asyncio.ensure_future(session.send("Math.add", Sum, a=1, b=2))
        command = await browser.receive()
        assert command["method"] == "Math.add" and command["params"] == {"a": 1, "b": 2}
        await browser.send(
            {"method": "Inspector.detached", "params": {}, "sessionId": PAGE},
            {"id": command["id"], "result": {"sum": 3, "more": [1]}, "sessionId": PAGE},
            {"id": 1, "result": {}},
        )
        assert await sending == Sum(3)
        assert await events.receive() == {"id": 1, "result": {}}

    in_pipe(check)


def test_driver_receives_no_late_reply_of_a_long_run():
    async def check(pipe, commands, events, browser, session):
        for number in (FIRST_ID + 10**6, 2**31 - 1, FIRST_ID - 1):
            await browser.send({"id": number, "result": {}})
        assert await events.receive() == {"id": FIRST_ID - 1, "result": {}}

    in_pipe(check)


def test_own_command_does_not_break_a_message_of_the_driver():
    async def check(pipe, commands, events, browser, session):
        message = _encode({"id": 1, "method": "Page.navigate"}) + b"\0"
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(commands.ours, message[:10])
        await asyncio.sleep(0.05)
        sending = asyncio.ensure_future(session.send("Math.add", dict))
        assert (await browser.receive())["method"] == "Math.add"
        await loop.sock_sendall(commands.ours, message[10:])
        assert (await browser.receive())["method"] == "Page.navigate"
        sending.cancel()

    in_pipe(check)


def test_events_of_own_sessions_reach_their_handlers():
    async def check(pipe, commands, events, browser, session):
        received = []
        session.on("Page.frameNavigated", received.append)
        navigated = {"method": "Page.frameNavigated", "params": {"frame": {"id": "1"}}}
        await browser.send(
            navigated | {"sessionId": "D" * 32}, navigated | {"sessionId": PAGE}, {"id": 1, "result": {}}
        )
        assert await events.receive() == navigated | {"sessionId": "D" * 32}
        assert await events.receive() == {"id": 1, "result": {}}
        assert received == [navigated["params"]]

    in_pipe(check)


def test_failed_command_raises_an_error_with_its_name():
    async def check(pipe, commands, events, browser, session):
        sending = asyncio.ensure_future(session.send("DOM.getBox", dict))
        number = (await browser.receive())["id"]
        await browser.send({"id": number, "error": {"code": -32000, "message": "No node"}, "sessionId": PAGE})
        with pytest.raises(Error, match="getBox: No node"):
            await sending

    in_pipe(check)


def test_closed_page_fails_its_commands():
    async def check(pipe, commands, events, browser, session):
        sending = asyncio.ensure_future(session.send("Math.add", dict))
        await browser.receive()
        await browser.send({"method": "Target.detachedFromTarget", "params": {"sessionId": PAGE}, "sessionId": ROOT})
        for late in (sending, session.send("Math.add", dict)):
            with pytest.raises(Error, match="has been closed"):
                await late

    in_pipe(check)


def test_ended_browser_fails_all_commands_and_disconnects_the_driver():
    async def check(pipe, commands, events, browser, session):
        sending = asyncio.ensure_future(pipe.send("Browser.getVersion", dict))
        await browser.receive()
        browser.ours.close()
        with pytest.raises(Error, match="has been closed"):
            await sending
        assert await events.receive() is None and await commands.receive() is None

    in_pipe(check)


def test_half_of_a_surrogate_pair_is_decoded():
    async def check(pipe, commands, events, browser, session):
        sending = asyncio.ensure_future(session.send("Page.text", dict))
        number = (await browser.receive())["id"]
        await browser.send(b'{"id":%d,"result":{"text":"\\ud800"},"sessionId":"%s"}' % (number, PAGE.encode()))
        assert await sending == {"text": "\ud800"}

    in_pipe(check)


def test_event_with_half_of_a_surrogate_pair_reaches_its_handler():
    async def check(pipe, commands, events, browser, session):
        received = []
        session.on("Page.windowOpen", received.append)
        event = b'{"method":"Page.windowOpen","params":{"windowName":"\\ud800"},"sessionId":"%s"}' % PAGE.encode()
        await browser.send(event, {"id": 1, "result": {}})
        assert await events.receive() == {"id": 1, "result": {}}
        assert received == [{"windowName": "\ud800"}]

    in_pipe(check)


@pytest.mark.parametrize("event", ['{"method":"Page.opened","params":{}', '{"method":"Page.opened","params":[]'])
def test_failing_event_handler_ends_only_its_own_session(event):
    """The handler expects a parameter that the first event does not have; the second one cannot be decoded."""

    async def check(pipe, commands, events, browser, session):
        other = pipe.attach("other")
        attaching = asyncio.ensure_future(other)
        number = (await browser.receive())["id"]
        await browser.send({"id": number, "result": {"sessionId": "Q" * 32}, "sessionId": ROOT})
        other = await attaching
        session.on("Page.opened", lambda parameters: parameters["name"])
        sending = asyncio.ensure_future(session.send("Math.add", dict))
        await browser.receive()
        await browser.send(f'{event},"sessionId":"{PAGE}"}}'.encode())
        with pytest.raises(Error, match="has been closed"):
            await sending
        ended = await browser.receive()
        assert ended["method"] == "Target.detachFromTarget" and ended["params"] == {"sessionId": PAGE}
        sending = asyncio.ensure_future(other.send("Math.add", Sum))
        number = (await browser.receive())["id"]
        await browser.send({"id": number, "result": {"sum": 3}, "sessionId": "Q" * 32})
        assert await sending == Sum(3) and not pipe.closed

    in_pipe(check)


def test_browser_that_ends_while_the_pipe_connects_disconnects_the_driver():
    async def run():
        commands, events, browser = Side(), Side(), Side()
        pipe = DevToolsPipe()
        pipe.close()  # as after the end of the browser, before the last connection is made
        pipe._browser.lost = True
        await pipe.connect((commands.theirs, events.theirs), browser.theirs)
        assert await events.receive() is None and await commands.receive() is None
        for side in (commands, events, browser):
            side.ours.close()

    asyncio.run(run())


def test_received_sockets_are_not_inherited_by_child_processes():
    ours, theirs = socket.socketpair()
    ends = socket.socketpair()
    with ours, theirs, ends[0], ends[1]:
        socket.send_fds(theirs, [b"0"], [end.fileno() for end in ends])
        for received in _receive_sockets(ours):
            assert not received.get_inheritable()
            received.close()


def test_pipe_without_sockets_raises_env_error_and_leaves_no_descriptor():
    ours, theirs = socket.socketpair()
    numbers = os.pipe()
    with ours, theirs:
        before = len(os.listdir("/proc/self/fd"))
        socket.send_fds(theirs, [b"0"], numbers)
        with pytest.raises(EnvError, match="two sockets"):
            _receive_sockets(ours)
        assert len(os.listdir("/proc/self/fd")) == before
    for number in numbers:
        os.close(number)


def test_folder_with_a_long_path_is_not_used(tmp_path):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    with TemporaryDirectory(dir="/tmp") as short, closing(Handover("chromium", [str(long), short])) as handover:
        assert handover.command.parent.parent == Path(short)
    assert not list(long.iterdir())
    with pytest.raises(ConfigError, match=r"too long for a socket.*TMPDIR"):
        Handover("chromium", [str(long)])


class PipeWithoutSockets:
    """Driver that starts the browser with plain pipes, and then waits for it."""

    def __init__(self):
        self.chromium = self

    async def launch(self, executable_path, **options):
        commands, events = os.pipe(), os.pipe()
        start = f"exec {executable_path} 3<&{commands[0]} 4>&{events[1]}"
        with subprocess.Popen(["bash", "-c", start], pass_fds=(commands[0], events[1])) as process:
            try:
                await asyncio.sleep(60)
            finally:
                process.kill()
                for number in (*commands, *events):
                    os.close(number)


def test_failed_handover_ends_the_start_at_once_with_its_reason():
    async def run():
        async with asyncio.timeout(20):
            await Driver()._launch(PipeWithoutSockets(), "true", "--mark")

    with pytest.raises(EnvError, match="two sockets"):
        asyncio.run(run())


@needs_chromium
def test_chromium_writes_ids_first_and_sessions_last(tmp_path):
    """The pipe finds both there, without parsing the message."""
    command = [find_chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    ours, theirs = socket.socketpair()
    shell = shlex.join([*command, f"--user-data-dir={tmp_path}"]) + f" 3<&{theirs.fileno()} 4>&{theirs.fileno()}"
    replies, events = [], []
    with ours, theirs, subprocess.Popen(["bash", "-c", f"exec {shell}"], pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        ours.settimeout(30)
        received = ours.makefile("rb")

        def send(method, session_id="", **parameters):
            command = {"id": FIRST_ID + len(replies), "method": method, "params": parameters}
            ours.sendall(json.dumps(command | ({"sessionId": session_id} if session_id else {})).encode() + b"\0")
            while True:
                message = b"".join(iter(lambda: received.read(1), b"\0"))
                content = json.loads(message)
                (replies if "id" in content else events).append((message, content))
                if content.get("id", 0) >= FIRST_ID:
                    return content["result"]

        target = send("Target.createTarget", url="about:blank")["targetId"]
        page = send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        send("Page.enable", page)
        send("Page.navigate", page, url="data:text/html,<p>")
        send("Target.closeTarget", targetId=target)
        send("Browser.close")
        process.wait(20)
    assert len(replies) == 6 and any(content.get("sessionId") == page for _, content in events)
    for message, content in replies:
        assert message.startswith(b'{"id":%d,' % content["id"])
    for message, content in events:
        assert message.startswith(b'{"method":"%s",' % content["method"].encode())
        assert message.endswith(b'"sessionId":"%s"}' % content.get("sessionId", "").encode()) == (
            "sessionId" in content
        )


BROWSER = """import os
command = os.read(3, 100)
os.write(4, b'{"id":%d,"result":{"read":"%s"}}\\0' % (int(command[6:16]), command[27:33]))
os.read(3, 1)
"""


def test_browser_hands_its_pipe_over():
    """The program stands for a browser: it reads commands from descriptor 3, and writes to descriptor 4."""

    async def run():
        driver_commands, driver_events = socket.socketpair(), socket.socketpair()
        with TemporaryDirectory() as folder:
            handover = Handover(sys.executable, [folder])
            numbers = driver_commands[1].fileno(), driver_events[1].fileno()
            start = f"exec {handover.command} -c {shlex.quote(BROWSER)} 3<&{numbers[0]} 4>&{numbers[1]}"
            with subprocess.Popen(["bash", "-c", start], pass_fds=numbers) as process:
                async with asyncio.timeout(20):
                    pipe = await handover.accept()
                    assert await pipe.send("Target", dict) == {"read": "Target"}
                pipe.close()
                await asyncio.to_thread(process.wait, 20)
            handover.close()
        for one in (*driver_commands, *driver_events):
            one.close()
        return process.returncode

    assert asyncio.run(run()) == 0
