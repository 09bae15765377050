"""MCP server of the recipes in this folder: a store of numbers, kept in a file of its working folder.

It speaks the protocol without the package mcp, so that it starts in a twentieth of a second. An episode starts one.
"""

import json
import sys
from pathlib import Path
from typing import Any

FILE = Path("store.txt")
NAME = {"type": "string", "description": "name of a thing"}
TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "set_number": ("Set the number of a thing.", {"name": NAME, "number": {"type": "integer"}}),
    "get_number": ("Return the number of a thing.", {"name": NAME}),
}


def load() -> dict[str, str]:
    """Return the numbers by name."""
    lines = FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else []
    return dict(line.split("=") for line in lines)


def call(tool: str, name: str, number: int = 0) -> str:
    """Carry out a call; raise KeyError for a thing without a number."""
    if tool == "get_number":
        return load()[name]
    stored = {**load(), name: str(number)}
    FILE.write_text("".join(f"{key}={stored[key]}\n" for key in sorted(stored)), encoding="utf-8")
    return f"{name} = {number}"


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a request; raise LookupError for a method that is not known."""
    if method == "initialize":
        info = {"name": "store", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        schemas = {
            name: {"type": "object", "properties": one, "required": list(one)} for name, (_, one) in TOOLS.items()
        }
        return {
            "tools": [
                {"name": name, "description": TOOLS[name][0], "inputSchema": one} for name, one in schemas.items()
            ]
        }
    if method == "tools/call":
        try:
            return {"content": [{"type": "text", "text": call(params["name"], **params["arguments"])}]}
        except KeyError as error:
            return {"content": [{"type": "text", "text": f"There is no {error.args[0]}."}], "isError": True}
    if method == "ping":
        return {}
    raise LookupError(method)


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:  # a notification
        continue
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
    try:
        reply["result"] = answer(request["method"], request.get("params") or {})
    except LookupError:
        reply["error"] = {"code": -32601, "message": "method not found"}
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()
