"""`keras-vit page`: the page for a TensorFlow Serving elsewhere."""

import argparse
import re
import ssl
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

from ..client_commands.arguments import connect, make_parser, server_errors
from ..commandline import UsageError, positive_integer
from ..http_limits import Bodies, OwnSite, is_host_name
from . import MODELS_PATH, html_response, models_document

HOST = "127.0.0.1"
_LARGEST = 64 * 2**20  # bytes of a request, and of an answer
_TOTAL = 4 * _LARGEST
_SECONDS = 60.0  # as long as the page waits
_CONNECTIONS = 100
_MODEL = r"/v1/models/(?P<name>[^/:]+)(?:/(?P<kind>versions|labels)/(?P<which>[^/:]+))?"
# What the page asks for, by method.
_PATHS = {
    "GET": re.compile(f"{_MODEL}(?P<rest>/metadata|)"),
    "POST": re.compile(f"{_MODEL}(?P<rest>:predict)"),
}


def main(argv: list[str]) -> int:
    """Serve the page on this machine until Ctrl-C.

    Args:
        argv: The arguments after `page`.

    Returns:
        The exit status.

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

    Args:
        args: Of `page_parser`.
    """
    verify = not args.ca_file or ssl.create_default_context(cafile=args.ca_file)
    headers = {"Accept-Encoding": "identity", **dict(args.header)}
    server = httpx2.AsyncClient(headers=headers, verify=verify, timeout=args.timeout)
    bodies = Bodies(_LARGEST, _TOTAL, _SECONDS)
    base = args.rest.rstrip("/")

    async def page(request: Request) -> Response:
        return html_response()

    async def models(request: Request) -> Response:
        selected = f"versions/{args.version}" if args.version is not None else ""
        selected = f"labels/{quote(args.label, safe='')}" if args.label else selected
        return JSONResponse(models_document(base, {args.model: None}, selected))

    async def forward(request: Request) -> Response:
        path = _path(request, args.model)
        try:
            async with (
                bodies.read(request) as body,
                server.stream(request.method, base + path, content=body) as answer,
            ):
                return await _answer(base, answer)
        except httpx2.HTTPError as error:
            return _no_answer(base, error)

    async def refused(request: Request, error: Any) -> Response:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    return Starlette(
        routes=[
            Route("/", page),
            Route(MODELS_PATH, models),
            Route("/v1/{path:path}", forward, methods=list(_PATHS)),
        ],
        middleware=[Middleware(OwnSite, args.allowed_host)],
        exception_handlers={HTTPException: refused},
    )


def _path(request: Request, model: str) -> str:
    """The path to ask the server for.

    Raises:
        HTTPException: 404 unless it is one that the page asks for.
    """
    path = request.scope["raw_path"].decode("ascii", "replace")
    match = _PATHS.get(request.method, _PATHS["GET"]).fullmatch(path)
    if match and unquote(match["name"]) == model and not request.url.query:
        which = unquote(match["which"] or "")
        # Nothing that a gateway before the server could take for another path.
        if which not in (".", "..") and not {*"/\\"} & {*which}:
            parts = [model, match["kind"], which] if which else [model]
            quoted = "/".join(quote(part, safe="") for part in parts)
            return f"/v1/models/{quoted}{match['rest']}"
    raise HTTPException(404, f"The page does not ask for this: {request.method} {path}")


async def _answer(base: str, answer: Any) -> Response:
    """The server's answer, as JSON whatever it says that it is."""
    body = bytearray()
    async for piece in answer.aiter_bytes():
        body += piece
        if len(body) > _LARGEST:
            text = f"the answer of {base} is larger than {_LARGEST} bytes"
            return JSONResponse({"error": text}, 502)
    return Response(
        bytes(body),
        answer.status_code,
        {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"},
        media_type="application/json",
    )


def _no_answer(base: str, error: Any) -> Response:
    reason = str(error) or type(error).__name__
    return JSONResponse({"error": f"no answer from {base}: {reason}"}, 502)
