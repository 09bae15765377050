"""MCP server behind a URL, which it prints, whose answers to calls are no results: `web.py CONTENT_TYPE`."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

KIND = sys.argv[1]
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
        text = json.dumps(answer) if KIND == "application/json" else f"event: message\ndata: {json.dumps(answer)}\n\n"
        self.send_response(202 if "id" not in request else 200)
        self.send_header("Content-Type", KIND)
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
