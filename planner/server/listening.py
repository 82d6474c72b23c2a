"""Serves the application on a socket, until interrupted."""

import socket

from planner.errors import InputError


def listen(listener: socket.socket, host: str) -> None:
    """Answer requests on ``listener``, reached as ``host``; returns when the process is told to stop.

    Raises ``InputError`` where the packages for it are not installed.
    """
    try:
        import uvicorn

        from planner.server.app import application
    except ImportError as error:
        raise InputError(f"serving needs {error.name}: pip install 'meshwright[serve]'") from None
    names = ("localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host)
    # Who listens on every address is reached under names that nobody knows here.
    hosts = ("*",) if host in ("0.0.0.0", "::") else names
    config = uvicorn.Config(
        application(hosts=hosts), log_level="warning", server_header=False, timeout_graceful_shutdown=1
    )
    uvicorn.Server(config).run(sockets=[listener])
