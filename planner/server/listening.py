"""Serves the application on a socket, until interrupted."""

import socket
from pathlib import Path

from planner.errors import InputError

MOST_CONNECTIONS = 64
"""At a time; more are told to come back."""


def listen(listener: socket.socket, host: str, cache: Path | None = None, think_ahead: bool = True) -> None:
    """Answer requests on ``listener``, reached as ``host``; returns when the process is told to stop.

    ``cache`` is a folder for plans; ``think_ahead``: plan what is likely to be asked while nobody waits.
    Raises ``InputError`` where the packages for it are not installed.
    """
    try:
        import starlette  # noqa: F401 - what the application is made of
        import uvicorn
    except ImportError as error:
        raise InputError(f"serving needs {error.name}: pip install 'meshwright[serve]'") from None
    from planner.server.ahead import Ahead, beginnings
    from planner.server.answering import Desk
    from planner.server.app import application
    from planner.server.keeping import Shelf

    names = ("localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host)
    # Who listens on every address is reached under names that nobody knows here.
    hosts = ("*",) if host in ("0.0.0.0", "::") else names
    desk = Desk(None if cache is None else Shelf(cache))
    ahead = Ahead(desk) if think_ahead else None
    if ahead is not None:
        ahead.put(beginnings())
        ahead.start()
    config = uvicorn.Config(
        application(desk, hosts, ahead),
        log_level="critical",
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listener])
