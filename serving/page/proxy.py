"""`keras-vit page`: the page for a TensorFlow Serving elsewhere."""

import argparse
import ssl
from typing import Any
from urllib.parse import urlsplit

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..client_commands.arguments import connect, make_parser, server_errors
from ..commandline import UsageError, positive_integer
from . import MODELS_PATH, html, models_document

HOST = "127.0.0.1"


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
    parser = make_parser("page", "Open a page that shows a model on a server.")
    parser.add_argument(
        "--port", type=positive_integer, default=8080, help="of the page (8080)"
    )
    args = parser.parse_args(argv)
    if not args.rest:
        raise UsageError("--rest is needed: a browser does not speak gRPC")
    if urlsplit(args.rest).scheme not in ("http", "https"):
        raise UsageError(
            f"--rest must look like http://127.0.0.1:8501. Received: {args.rest!r}"
        )
    with server_errors(args), connect(args) as client:
        client.status()
    print(f"http://{HOST}:{args.port}/ shows {args.model!r} at {args.rest}", flush=True)
    uvicorn.run(page_app(args), host=HOST, port=args.port, log_level="warning")
    return 0


def page_app(args: argparse.Namespace) -> Starlette:
    """The page, and the server's REST API behind it.

    A browser would refuse to ask another server, which sends no CORS headers.

    Args:
        args: Of `make_parser`: `rest`, `model`, `version`, `label`, `timeout`, `header`
            and `ca_file`.
    """
    verify = not args.ca_file or ssl.create_default_context(cafile=args.ca_file)
    server = httpx2.AsyncClient(
        headers=dict(args.header), verify=verify, timeout=args.timeout
    )
    base = args.rest.rstrip("/")

    async def page(request: Request) -> Response:
        return Response(html(), media_type="text/html")

    async def models(request: Request) -> Response:
        selected = f"versions/{args.version}" if args.version is not None else ""
        selected = f"labels/{args.label}" if args.label else selected
        return JSONResponse(models_document(base, {args.model: None}, selected))

    async def forward(request: Request) -> Response:
        path = request.scope["raw_path"].decode()
        try:
            answer = await server.request(
                request.method, base + path, content=await request.body()
            )
        except httpx2.HTTPError as error:
            return _no_answer(base, error)
        kind = answer.headers.get("content-type")
        return Response(answer.content, answer.status_code, media_type=kind)

    return Starlette(
        routes=[
            Route("/", page),
            Route(MODELS_PATH, models),
            Route("/v1/{path:path}", forward, methods=["GET", "POST"]),
        ]
    )


def _no_answer(base: str, error: Any) -> Response:
    reason = str(error) or type(error).__name__
    return JSONResponse({"error": f"no answer from {base}: {reason}"}, 502)
