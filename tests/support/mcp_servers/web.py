"""MCP server behind a URL, which it prints, whose answers to calls are no results.

`web.py CONTENT_TYPE [STATUS [BODY [SESSION]]]`; without a body, calls are answered with a result that is a text. With
the type `never` they are not answered, and pings have the status.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

KIND, STATUS, BODY, SESSION = [*sys.argv[1:], *("", "200", "", "")[len(sys.argv) - 1 :]]
TOOL = {"name": "put", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}


class Web(BaseHTTPRequestHandler):
    """Answers of the server."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        version = (request.get("params") or {}).get("protocolVersion")
        told = {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "web", "version": "1"},
        }
        results: dict[str, Any] = {"initialize": told, "tools/list": {"tools": [TOOL]}, "tools/call": "stored"}
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request.get("id")}
        if request["method"] in results:
            answer["result"] = results[request["method"]]
        else:
            answer["error"] = {"code": -32601, "message": "method not found"}
        called = request["method"] == "tools/call"
        if called and KIND == "never":
            threading.Event().wait()
        status = int(STATUS) if request["method"] in ("tools/call", "ping") else 200
        kind = KIND if called or status != 200 else "application/json"
        text = json.dumps(answer) if kind != "text/event-stream" else f"event: message\ndata: {json.dumps(answer)}\n\n"
        text = BODY if called and BODY else text
        self.send_response(status if "id" in request else 202)
        self.send_header("Content-Type", kind)
        if SESSION and request["method"] == "initialize":
            self.send_header("Mcp-Session-Id", SESSION)
        self.send_header("Content-Length", str(len(text) if "id" in request else 0))
        self.end_headers()
        if "id" in request:
            self.wfile.write(text.encode())

    def do_GET(self) -> None:
        self.send_error(405)

    do_DELETE = do_GET

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Web)
sys.stdout.write(f"http://127.0.0.1:{server.server_port}/mcp\n")
sys.stdout.flush()
server.serve_forever()
