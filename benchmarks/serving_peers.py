"""The contestants of benchmarks.serving, each in a process of its own.

    python -m benchmarks.serving_peers echo
    python -m benchmarks.serving_peers keras
    python -m benchmarks.serving_peers direct function|session SAVED-MODEL IMAGE...

`echo` is a bare Starlette route that returns its JSON: the minimum cost of the same
HTTP server. `keras` is a usual web service: decode with Pillow, `model.predict`, JSON.
`direct` calls the SavedModel from threads; it runs a round for each line "CLIENTS
SECONDS" on its stdin and prints the result as JSON.
"""

import base64
import concurrent.futures
import io
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SIDE = 224


def vit():
    """Ti/16 at 224 with 1000 classes and random weights, the same in every process."""
    import keras

    import keras_vit

    keras.utils.set_random_seed(0)
    return keras_vit.VisionTransformer.from_variant("Ti/16", classes=1000)


def echo() -> None:
    """Serve POST /echo."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def answer(request: Request) -> JSONResponse:
        return JSONResponse(await request.json())

    _serve(Starlette(routes=[Route("/echo", answer, methods=["POST"])]))


def keras() -> None:
    """Serve POST /predict with the body of TensorFlow Serving's predict."""
    import numpy as np
    from PIL import Image
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    model = vit()

    def pixels(value: dict[str, str]) -> np.ndarray:
        image = Image.open(io.BytesIO(base64.b64decode(value["b64"])))
        resized = image.convert("RGB").resize((SIDE, SIDE))
        return np.asarray(resized, "float32") / 127.5 - 1

    # Not a coroutine: runs in a thread, so that other requests are not blocked.
    def predict(body: bytes) -> list:
        images = json.loads(body)["inputs"]["image_bytes"]
        batch = np.stack([pixels(value) for value in images])
        return model.predict(batch, verbose=0).tolist()

    async def answer(request: Request) -> JSONResponse:
        from starlette.concurrency import run_in_threadpool

        return JSONResponse(await run_in_threadpool(predict, await request.body()))

    _serve(Starlette(routes=[Route("/predict", answer, methods=["POST"])]))


def _serve(app) -> None:
    """Serve as the local server does, on a free port, which is printed."""
    import socket

    import uvicorn

    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.bind(("127.0.0.1", 0))
    print(bound.getsockname()[1], flush=True)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
    uvicorn.Server(config).run([bound])


def direct(way: str, saved_model: str, *images: str) -> None:
    """Call `serving_default` in a loop from threads."""
    call = _function(saved_model) if way == "function" else _session(saved_model)
    contents = [Path(image).read_bytes() for image in images]

    def loop(first: int, until: float) -> list[float]:
        latencies: list[float] = []
        while (begin := time.perf_counter()) < until:
            call(contents[(first + len(latencies)) % len(contents)])
            latencies.append(time.perf_counter() - begin)
        return latencies

    for content in contents:
        call(content)
    print("ready", flush=True)
    for line in sys.stdin:
        clients, seconds = int(line.split()[0]), float(line.split()[1])
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(clients) as threads:
            futures = [
                threads.submit(loop, number, begin + seconds)
                for number in range(clients)
            ]
            latencies = [value for future in futures for value in future.result()]
        # Until the end of the last call, since all calls are counted.
        elapsed = time.perf_counter() - begin
        print(json.dumps({"seconds": elapsed, "latencies": latencies}), flush=True)


def _function(saved_model: str) -> Callable[[bytes], Any]:
    """Load with `tf.saved_model.load`."""
    import tensorflow as tf

    loaded = tf.saved_model.load(saved_model)

    def call(content: bytes) -> list:
        signature = loaded.signatures["serving_default"]
        answer = signature(image_bytes=tf.constant([content]))
        return [output.numpy() for output in answer.values()]

    return call


def _session(saved_model: str) -> Callable[[bytes], Any]:
    """Load into a session, as TensorFlow Serving does."""
    import numpy as np
    import tensorflow as tf

    graph = tf.Graph()
    session: Any = tf.compat.v1.Session(graph=graph)
    with graph.as_default():
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], saved_model)
    signature = meta_graph.signature_def["serving_default"]
    fetches = {name: info.name for name, info in signature.outputs.items()}
    run = session.make_callable(
        list(fetches.values()), [signature.inputs["image_bytes"].name]
    )
    return lambda content: run(np.array([content], dtype=object))


PEERS: dict[str, Callable[..., None]] = {"echo": echo, "keras": keras, "direct": direct}

if __name__ == "__main__":
    PEERS[sys.argv[1]](*sys.argv[2:])
