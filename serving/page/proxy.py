"""`keras-vit page`: the page for a TensorFlow Serving elsewhere."""

import argparse
import re
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from keras_vit.common.command_line import UsageError, positive_integer

from ..client_commands.arguments import connect, make_parser, server_errors
from ..http_limits import Bodies, OwnSite, is_host_name
from . import MODELS_PATH, html_response, models_document

HOST = "127.0.0.1"
_LARGEST = 64 * 2**20  # bytes of a request, and of an answer
_TOTAL = 4 * _LARGEST
_SECONDS = 60.0  # as long as the page waits
_CONNECTIONS = 100
# Of an answer, which is labeled as JSON whatever the server says that it is.
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_MODEL = r"/v1/models/(?P<name>[^/:]+)(?:/(?P<kind>versions|labels)/(?P<which>[^/:]+))?"
# What the page asks for, by method.
_PATHS = {
    "GET": re.compile(f"{_MODEL}(?P<rest>/metadata|)"),
    "POST": re.compile(f"{_MODEL}(?P<rest>:predict)"),
}


def main(argv: list[str]) -> int:
    """Serve the page on this machine until Ctrl-C.

    Raises:
        CommandError: No server answers, or it does not serve the model.
        UsageError: The arguments are wrong.
    """
    args = page_parser().parse_args(argv)
    if not args.rest:
        raise UsageError("--rest is needed: a browser does not speak gRPC")
    if urlsplit(args.rest).scheme not in ("http", "https"):
        raise UsageError(
            f"--rest must look like http://127.0.0.1:8501. Received: {args.rest!r}"
        )
    if "@" in urlsplit(args.rest).netloc:
        raise UsageError("--rest must have no password: --header takes it")
    with server_errors(args), connect(args) as client:
        client.status()
    print(f"http://{HOST}:{args.port}/ shows {args.model!r} at {args.rest}", flush=True)
    uvicorn.run(
        page_app(args),
        host=HOST,
        port=args.port,
        log_level="warning",
        limit_concurrency=_CONNECTIONS,
        proxy_headers=False,
        server_header=False,
        http="h11",  # which limits the headers of a request
        ws="none",
    )
    return 0


def page_parser() -> argparse.ArgumentParser:
    """The arguments of the command."""
    parser = make_parser("page", "Open a page that shows a model on a server.")
    parser.add_argument(
        "--port", type=positive_integer, default=8080, help="of the page (8080)"
    )
    parser.add_argument(
        "--allowed_host",
        action="append",
        type=_host_name,
        default=[],
        metavar="NAME",
        help="another name under which browsers reach the page; may be repeated",
    )
    return parser


def _host_name(text: str) -> str:
    if not is_host_name(text):
        raise argparse.ArgumentTypeError(
            f"must be a host name without a port. Received: {text!r}"
        )
    return text


def page_app(args: argparse.Namespace) -> Starlette:
    """The page, and what it asks of one model on the server.

    A browser would refuse to ask another server, which sends no CORS headers. The
    server gets `args.header`, so requests of other sites are refused, and the path of
    each is made here.
    """

    async def page(request: Request) -> Response:
        return html_response()

    async def models(request: Request) -> Response:
        selected = f"versions/{args.version}" if args.version is not None else ""
        selected = f"labels/{quote(args.label, safe='')}" if args.label else selected
        base = args.rest.rstrip("/")
        return JSONResponse(models_document(base, {args.model: None}, selected))

    async def refused(request: Request, error: Any) -> Response:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    app = Starlette(
        routes=[
            Route("/", page),
            Route(MODELS_PATH, models),
            Route("/v1/{path:path}", Forward(args), methods=list(_PATHS)),
        ],
        middleware=[Middleware(OwnSite, args.allowed_host)],
        exception_handlers={HTTPException: refused},
    )
    app.router.redirect_slashes = False
    return app


class Forward:
    """ASGI application that asks the server for what the page asks for."""

    def __init__(self, args: argparse.Namespace) -> None:
        verify = not args.ca_file or ssl.create_default_context(cafile=args.ca_file)
        headers = {"Accept-Encoding": "identity", **dict(args.header)}
        self._server = httpx2.AsyncClient(
            headers=headers, verify=verify, timeout=args.timeout
        )
        # Cookies of one user must not reach another one's requests.
        self._server.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self._base = args.rest.rstrip("/")
        self._model = args.model
        self._bodies = Bodies(_LARGEST, _TOTAL, _SECONDS)
        self._answers = Bodies(_LARGEST, _TOTAL, _SECONDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            HTTPException: The page does not ask for this, or a limit is reached.
        """
        request = Request(scope, receive)
        url = self._base + _path(request, self._model)
        async with self._bodies.read(request.stream(), request.headers) as body:
            status: list[int] = []
            content = bytes(body) if request.method == "POST" else None
            asked = self._ask(request.method, url, content, status)
            try:
                async with aclosing(asked), self._answers.read(asked, {}) as answer:
                    response = Response(
                        bytes(answer), status[0], _HEADERS, "application/json"
                    )
                    await response(scope, receive, send)
            except httpx2.HTTPError as error:
                raise self._no_answer(str(error) or type(error).__name__) from error
            except HTTPException as error:
                raise self._no_answer(error.detail) from error

    async def _ask(
        self, method: str, url: str, content: bytes | None, status: list[int]
    ) -> AsyncGenerator[bytes]:
        """Yield the server's answer as it arrives; its status is added to the list."""
        async with self._server.stream(method, url, content=content) as answer:
            coding = answer.headers.get("content-encoding", "identity")
            if coding != "identity" or not 200 <= answer.status_code < 600:
                text = f"status {answer.status_code}, Content-Encoding {coding}"
                raise HTTPException(502, text)
            status.append(answer.status_code)
            async for piece in answer.aiter_raw():
                yield piece

    def _no_answer(self, reason: str) -> HTTPException:
        return HTTPException(502, f"no answer from {self._base}: {reason}")


def _path(request: Request, model: str) -> str:
    """The path to ask the server for."""
    if request.method not in _PATHS:
        raise HTTPException(405, f"Not a method of the page: {request.method}")
    path = request.scope["raw_path"].decode("ascii", "replace")
    match = _PATHS[request.method].fullmatch(path)
    if match and unquote(match["name"]) == model and not request.url.query:
        which = unquote(match["which"] or "")
        # Nothing that a gateway before the server could take for another path.
        if which not in (".", "..") and not {*"/\\"} & {*which}:
            parts = [model, match["kind"], which] if which else [model]
            quoted = "/".join(quote(part, safe="") for part in parts)
            return f"/v1/models/{quoted}{match['rest']}"
    raise HTTPException(404, f"The page does not ask for this: {request.method} {path}")
