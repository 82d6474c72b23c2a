"""The server over plain HTTP, in a process of its own: what it answers, and what it refuses."""

import asyncio
import http.client
import json
import re
import signal
import socket
import subprocess
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

for package in ("starlette", "uvicorn", "vl_convert"):
    pytest.importorskip(package)

JSON = {"Content-Type": "application/json"}


def ask(
    address: str, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Status, headers and body; the path goes out as it is."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request(method, path, body, headers or {})
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    return reply.status, reply.headers, content


def post(address: str, path: str, data: Any) -> tuple[int, dict[str, Any]]:
    status, _, content = ask(address, "POST", path, json.dumps(data).encode(), JSON)
    return status, json.loads(content)


def test_the_page_and_all_that_it_loads(address: str) -> None:
    status, headers, content = ask(address, "GET", "/")
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    loaded = re.findall(r'(?:src|href)="(/[^"]+)"', content.decode())
    assert loaded == ["/static/page.css", "/static/form.css", "/static/form.js"]
    imported = re.findall(r'"(/static/[^"]+)"', ask(address, "GET", "/static/form.js")[2].decode())
    for path in [*loaded, *imported]:
        status, headers, content = ask(address, "GET", path)
        assert status == 200
        assert headers["content-type"].startswith("text/css" if path.endswith(".css") else "text/javascript")
        assert content
    assert "script-src 'self';" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_an_answer(address: str, question: dict[str, Any]) -> None:
    status, reply = post(address, "/answer", {"asked": question})
    assert status == 200
    assert reply["title"].startswith("llama-3.2-1b on dgx-h100:1 (8 devices)")
    assert "It fits" in reply["html"]
    status, reply = post(address, "/nearby", {"asked": question, "before": question})
    assert status == 200
    assert "carried over" in reply["text"]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../../../etc/passwd",
        "/static/..%2f..%2f..%2fetc%2fpasswd",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/form.py",
        "/etc/passwd",
        "/static/",
        "//etc/passwd",
        "/%00",
    ],
)
def test_nothing_but_its_own_files(address: str, path: str) -> None:
    status, headers, content = ask(address, "GET", path)
    assert status == 404
    assert set(json.loads(content)) == {"error"}
    assert "content-security-policy" in headers


@pytest.mark.parametrize("name", ["/etc/passwd", "../model", "no-such-model", "config.json"])
@pytest.mark.parametrize("field", ["model", "cluster"])
def test_names_only(address: str, question: dict[str, Any], field: str, name: str) -> None:
    status, reply = post(address, "/answer", {"asked": {**question, field: name}})
    assert status == 400
    assert reply["error"].startswith(f"unknown {field}")
    assert "\n" not in reply["error"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"[" * 10_000,
        b'{"asked": {}}',
        b'{"asked": {"model": 1}, "more": 2}',
    ],
)
def test_bad_bodies_get_one_sentence(address: str, body: bytes) -> None:
    status, _, content = ask(address, "POST", "/answer", body, JSON)
    assert status == 400
    error = json.loads(content)["error"]
    assert error
    assert "\n" not in error
    assert "Traceback" not in error


def test_a_field_is_named_as_the_form_has_it(address: str, question: dict[str, Any]) -> None:
    status, reply = post(address, "/answer", {"asked": {**question, "devices": 0}})
    assert (status, reply["error"]) == (400, "devices: must be greater than 0, found 0")
    job = {**question["job"], "seq_len": "long"}
    status, reply = post(address, "/answer", {"asked": {**question, "job": job}})
    assert (status, reply["error"]) == (400, "seq_len: must be a whole number, found 'long'")


def test_contradictions_and_what_does_not_fit(address: str, question: dict[str, Any]) -> None:
    status, reply = post(address, "/answer", {"asked": {**question, "pins": {"tensor": 3}}})
    assert status in (400, 422)
    assert "tensor" in reply["error"]
    large = {**question, "model": "llama-3.1-405b"}
    status, reply = post(address, "/answer", {"asked": large})
    assert status == 422
    assert reply["error"]


def test_what_breaks_is_a_sentence_too(question: dict[str, Any]) -> None:
    from planner.server.answering import Desk
    from planner.server.app import application

    class Broken(Desk):
        def answer(self, *asked: Any) -> Any:
            raise RuntimeError("two\nlines")

    scope = {
        "type": "http", "method": "POST", "path": "/answer", "query_string": b"", "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps({"asked": question}).encode(), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(application(Broken())(scope, receive, send))
    start, body = sent
    assert start["status"] == 500
    assert b"content-security-policy" in dict(start["headers"])
    assert json.loads(body["body"]) == {"error": "internal error, please report it: RuntimeError: two lines"}


def test_a_huge_body_is_refused(address: str) -> None:
    status, _, content = ask(address, "POST", "/answer", b" " * 100_000, JSON)
    assert status == 413
    assert "at most" in json.loads(content)["error"]


def test_a_body_without_end_is_refused_before_it_ends(address: str) -> None:
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        head = f"POST /answer HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        piece = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
        for _ in range(5):
            connection.sendall(piece)
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_what_a_foreign_form_can_send_is_refused(address: str, kind: str) -> None:
    assert ask(address, "POST", "/answer", b"{}", {"Content-Type": kind})[0] == 415


def test_a_foreign_name_is_refused(address: str) -> None:
    """A site whose name is made to point here (DNS rebinding) gets nothing."""
    assert ask(address, "GET", "/", headers={"Host": "evil.example"})[0] == 400


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/answer"), ("PUT", "/answer"), ("DELETE", "/"), ("POST", "/")]
)
def test_other_methods(address: str, method: str, path: str) -> None:
    assert ask(address, method, path)[0] == 405


def test_an_interrupt_ends_it_at_once_in_the_middle_of_a_search(
    own_server: tuple[subprocess.Popen[str], str], question: dict[str, Any]
) -> None:
    server, address = own_server
    assert post(address, "/nearby", {"asked": question, "before": question}) == (200, {"text": None})
    large = {
        **question,
        "model": "deepseek-v3-671b",
        "devices": 2048,
        "job": {"global_batch": 4096, "seq_len": 4096},
    }
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    connection.request("POST", "/answer", json.dumps({"asked": large}), JSON)
    time.sleep(1)
    server.send_signal(signal.SIGINT)
    assert server.wait(10) == 130
    assert server.stderr
    assert server.stderr.read() == "interrupted\n"
    connection.close()
