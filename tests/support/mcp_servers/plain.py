"""MCP server of the standard library alone, which starts fast, and its hostile variants: `plain.py VARIANT`."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "good"
TOOL = {"name": "put", "description": "Store a text.", "inputSchema": {
    "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}  # fmt: skip
NUMBER = {"type": "object", "properties": {"text": {"type": "integer", "minimum": 0, "exclusiveMinimum": True}}}
LOST = {"type": "object", "properties": {"text": {"$ref": "#/$defs/Lost"}}}
TOOLS = {
    "twins": [TOOL, {**TOOL, "name": "Put"}],
    "twice": [TOOL, TOOL],
    "finish": [TOOL, {**TOOL, "name": "finish"}],
    "dots": [{**TOOL, "name": "put.text"}],
    "no_schema": [{"name": "put"}],
    "draft_4": [{**TOOL, "inputSchema": {**NUMBER, "$schema": "http://json-schema.org/draft-04/schema#"}}],
    "lost_reference": [{**TOOL, "inputSchema": LOST}],
}
RESULTS = {
    "text": {"content": "no list"},
    "unknown_part": {"content": [{"type": "text", "text": "stored"}, {"type": "smell", "of": "roses"}]},
    "no_object": {"content": [3]},
    "empty": {"content": [{"type": "text", "text": ""}]},
}
ANSWERS = {
    "string": {"result": "stored"},
    "number": {"result": 3},
    "list": {"result": []},
    "null": {"result": None},
    "bare": {},
    "text_error": {"error": "no room"},
}
"""Answers to a call that are no messages of JSON-RPC."""
ERRORS = {"refuses": -32000, "broken": -32603, "blames": -32602, "own_timeout": -32001}


def send(identity: Any, **answer: Any) -> None:
    if VARIANT == "logs":
        sys.stdout.write("2026-05-01 INFO answering a request\n")
    if VARIANT == "json_logs":
        sys.stdout.write('{"level": "info", "id": 1}\n[1]\n3\n' + "[" * 5000 + "\n")
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": identity, **answer}) + "\n")
    if VARIANT == "late_logs":
        sys.stdout.write("2026-05-01 INFO answered a request\n")
    sys.stdout.flush()


def called(identity: Any, text: str) -> None:
    if VARIANT == "dies":
        os.write(2, b"out of luck\n")
        os._exit(1)
    if VARIANT == "hangs":
        time.sleep(1e6)
    if VARIANT in ERRORS:
        return send(identity, error={"code": ERRORS[VARIANT], "message": "no room"})
    if VARIANT in ANSWERS:
        return send(identity, **ANSWERS[VARIANT])
    if VARIANT in RESULTS:
        return send(identity, result=RESULTS[VARIANT])
    if VARIANT == "forks" and os.fork() == 0:
        os.setsid()
        time.sleep(1e6)
    Path("stored").write_text(text)
    said = (
        "x" * 1_000_000
        if VARIANT == "large"
        else "x" * (1 << 25)
        if VARIANT == "too_large"
        else f"stored {text}" + (f" by {os.getpid()}" if VARIANT != "steady" else "")
    )
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    send(identity, result={"content": [{"type": "text", "text": said}, *([image] if VARIANT == "image" else [])]})


def main() -> None:
    """Answer requests until the input ends."""
    if VARIANT == "ends":
        sys.exit("no configuration")
    for line in sys.stdin:
        request = json.loads(line)
        identity, method, params = request.get("id"), request.get("method"), request.get("params") or {}
        if identity is None or VARIANT == "silent":
            continue
        if method == "initialize":
            version = "1999-01-01" if VARIANT == "old" else params["protocolVersion"]
            told = {"protocolVersion": version, "capabilities": {"tools": {}}}
            send(identity, result={**told, "serverInfo": {"name": "plain", "version": "1"}})
        elif method == "tools/list" and VARIANT == "no_list":
            send(identity, error={"code": -32603, "message": "no database"})
        elif method == "tools/list" and VARIANT == "endless":
            send(identity, result={"tools": [], "nextCursor": "more"})
        elif method == "tools/list" and VARIANT == "slow_list":
            continue
        elif method == "tools/list" and VARIANT == "bare_list":
            send(identity)
        elif method == "tools/list":
            send(identity, result={"tools": TOOLS.get(VARIANT, [TOOL])})
        elif method == "tools/call":
            called(identity, params["arguments"]["text"])
        elif method == "ping":
            send(identity, result={})
        else:
            send(identity, error={"code": -32601, "message": "method not found"})
    if VARIANT == "forks":
        time.sleep(1e6)


main()
