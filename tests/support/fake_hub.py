"""A hub of one repository on this machine, with the few answers that huggingface_hub asks for."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What was asked, and where a transfer is cut short once."""

    url: str = ""
    folder: Path = Path()
    name: str = ""
    revisions: tuple[str, ...] = ("main", COMMIT)
    cut: str | None = None
    """File whose first transfer ends half way."""
    ranges: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)


@contextmanager
def serve(folder: Path, name: str, **settings: Any) -> Iterator[Hub]:
    """Serve ``folder`` as repository ``name``."""
    hub = Hub(folder=folder, name=name, **settings)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(send_body=False)

        def do_GET(self) -> None:
            self._answer(send_body=True)

        def _answer(self, *, send_body: bool) -> None:
            parts = unquote(urlparse(self.path).path).strip("/").split("/")
            if parts[:2] == ["api", "models"] and "/".join(parts[2:4]) == hub.name:
                self._api(parts[4:])
            elif "/".join(parts[:2]) == hub.name and parts[2:3] == ["resolve"]:
                self._file("/".join(parts[4:]), send_body=send_body)
            else:
                self._json({"error": "Repository not found"}, 404, "RepoNotFound")

        def _api(self, rest: list[str]) -> None:
            revision = rest[1] if len(rest) > 1 else "main"
            if revision not in hub.revisions:
                self._json({"error": "Invalid rev id"}, 404, "RevisionNotFound")
                return
            files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))
            if rest[:1] == ["tree"]:
                self._json([_entry(folder / file, file) for file in files])
                return
            self._json(
                {
                    "_id": "0",
                    "id": hub.name,
                    "modelId": hub.name,
                    "sha": COMMIT,
                    "private": False,
                    "siblings": [{"rfilename": file} for file in files],
                    "tags": [],
                    "downloads": 0,
                    "likes": 0,
                }
            )

        def _file(self, file: str, *, send_body: bool) -> None:
            data = (folder / file).read_bytes()
            start = 0
            asked = self.headers.get("Range")
            if send_body:
                hub.fetched.append(file)
                if asked:
                    hub.ranges.append(asked)
                    start = int(asked.removeprefix("bytes=").split("-")[0])
            self.send_response(206 if start else 200)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
            self.send_header("Content-Length", str(len(data) - start))
            self.send_header("Accept-Ranges", "bytes")
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            if not send_body:
                return
            if file == hub.cut:
                hub.cut = None
                self.wfile.write(data[: len(data) // 2])
                self.wfile.flush()
                self.close_connection = True
                return
            self.wfile.write(data[start:])

        def _json(self, value: Any, status: int = 200, code: str | None = None) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _entry(path: Path, name: str) -> dict[str, Any]:
    data = path.read_bytes()
    return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
