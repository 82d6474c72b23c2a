"""The server: a page, its static files, and two questions; nothing that a client sends ever names a file."""

import json
import re
from asyncio import wrap_future
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from threading import Thread
from typing import Any

from pydantic import Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster_specs.record import Record, first_problem
from planner.errors import Infeasible, InputError, PlannerError
from planner.server.ahead import Ahead, neighbours
from planner.server.answering import Desk, Overtaken, TooLong
from planner.server.asking import Asked, Nearby
from planner.server.form import form_page, static_files

LARGEST_BODY = 16 * 1024
"""Of a request [bytes]; a question has a few hundred."""

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every response. Charts set styles of their marks, hence inline styles; scripts come from here alone."""


class Posted(Record):
    """A question with who asks it."""

    asked: Asked
    tab: str = Field(default="", max_length=64)
    turn: int = Field(default=0, ge=0)
    first: bool = False
    """The best plan at once; what came close is asked for afterwards."""


class Guard:
    """Puts `HEADERS` on every response, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), text.encode()) for name, text in HEADERS.items()]
                message["headers"] = [*message["headers"], *own]
            await send(message)

        await self.app(scope, receive, guarded)


def application(
    desk: Desk | None = None,
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]"),
    ahead: Ahead | None = None,
) -> Starlette:
    """The application; ``hosts`` are the names under which it may be reached, so that no other site can rebind one.

    ``ahead`` plans what is likely to be asked after each answer.

    Raises ``InputError`` where the library that draws charts is missing.
    """
    at_desk, files = desk or Desk(), static_files()

    async def page(request: Request) -> Response:
        return Response(await run_in_threadpool(form_page), media_type="text/html")

    async def static(request: Request) -> Response:
        if request.path_params["name"] not in files:
            raise HTTPException(404, "no such page")
        kind, text = files[request.path_params["name"]]
        return Response(text, media_type=kind)

    def look_ahead(asked: Asked) -> None:
        if ahead is not None:
            ahead.put(neighbours(asked))

    def answer(data: Any) -> Mapping[str, Any]:
        posted = Posted.model_validate(data)
        try:
            found = at_desk.answer(posted.asked, posted.tab, posted.turn, posted.first)
        except Infeasible:
            look_ahead(posted.asked)
            raise
        if found.complete:
            look_ahead(posted.asked)
        return {"title": found.title, "html": found.html, "complete": found.complete}

    def nearby(data: Any) -> Mapping[str, Any]:
        return {"text": at_desk.nearby(Nearby.model_validate(data))}

    return Starlette(
        routes=[
            Route("/", page),
            Route("/static/{name}", static),
            Route("/answer", _posted(answer), methods=["POST"]),
            Route("/nearby", _posted(nearby), methods=["POST"]),
        ],
        middleware=[Middleware(Guard), Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        exception_handlers={HTTPException: _refused},
    )


def _posted(work: Callable[[Any], Mapping[str, Any]]) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that takes a JSON body and does ``work`` on a thread; every error becomes a status and a sentence."""

    async def endpoint(request: Request) -> Response:
        data = await _body(request)
        try:
            return JSONResponse(await _beside(work, data))
        except Exception as error:
            raise _refusal(error) from error

    return endpoint


def _refusal(error: Exception) -> HTTPException:
    """What a browser is told of an error."""
    for kind, (status, sentence) in REFUSALS.items():
        if isinstance(error, kind):
            return HTTPException(status, sentence(error))
    reason = " ".join(str(error).split())
    return HTTPException(500, f"internal error, please report it: {type(error).__name__}: {reason}")


def _misread(error: ValidationError) -> str:
    """The field as the form has it, whatever table of the question it is in."""
    return re.sub(r"^asked\.(job\.|pins\.)?", "", first_problem(error))


def _infeasible(error: Any) -> str:
    return "; ".join(filter(None, (str(error), error.least_change)))


REFUSALS: Mapping[type[Exception], tuple[int, Callable[[Any], str]]] = {
    ValidationError: (400, _misread),
    InputError: (400, str),
    Infeasible: (422, _infeasible),
    PlannerError: (422, str),
    Overtaken: (409, lambda error: "a newer question has overtaken this one"),
    TooLong: (503, lambda error: "the search takes too long for a page: fix parts of the plan"),
}
"""Kind of error, the special before the general -> status and sentence."""


async def _beside(work: Callable[[Any], Mapping[str, Any]], data: Any) -> Mapping[str, Any]:
    """``work`` on a thread of its own, which does not keep the process from ending."""
    done: Future[Mapping[str, Any]] = Future()
    done.set_running_or_notify_cancel()  # who no longer waits does not stop it

    def run() -> None:
        try:
            done.set_result(work(data))
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    return await wrap_future(done)


async def _body(request: Request) -> Any:
    """The JSON of a request, read no further than `LARGEST_BODY`."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "send application/json")
    content = b""
    async for piece in request.stream():
        content += piece
        if len(content) > LARGEST_BODY:
            raise HTTPException(413, f"a question has at most {LARGEST_BODY:,} bytes")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is not JSON") from None


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
