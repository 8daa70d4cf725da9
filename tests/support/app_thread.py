"""An ASGI application behind a port of its own, in a thread of this process."""

import contextlib
import threading

import uvicorn


@contextlib.contextmanager
def serve(app):
    """Serve the application during a `with` block; gives its URL."""
    options = {"log_level": "error", "lifespan": "off", "timeout_graceful_shutdown": 5}
    config = uvicorn.Config(app, port=0, **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive(), "the server has not started"
        [listening] = server.servers[0].sockets
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
