"""Modules that importing and building a client over REST imports.

`python -m benchmarks.client_start` compares the times.
"""

import subprocess
import sys


def modules_after(statement):
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def packages(modules):
    """Those that do not come with Python."""
    names = {name.partition(".")[0] for name in modules}
    return {name for name in names if name not in sys.stdlib_module_names}


def test_importing_the_client_adds_its_own_modules_and_few_of_python():
    http = modules_after("import httpx2")
    added = modules_after("from serving.client import RestClient") - http
    assert packages(added) == {"serving"}
    assert {name for name in added if name.startswith("serving.")} == {
        "serving.client",
        *(
            f"serving.client.{name}"
            for name in (
                "base_client",
                "blocking_client",
                "concurrent_images",
                "errors",
                "image_encoding",
                "image_signatures",
                "protocol",
                "responses",
                "rest_client",
                "rest_protocol",
                "retries",
                "steps",
            )
        ),
    }
    python = {name.partition(".")[0].strip("_") for name in added} - {"serving"}
    assert python <= {"concurrent", "heapq", "logging", "queue", "string", "traceback"}


def test_a_client_that_was_built_has_imported_no_more_than_its_http_library():
    http = modules_after("import httpx2; httpx2.Client()")
    built = "from serving.client import RestClient; RestClient('http://server', 'm')"
    assert packages(modules_after(built) - http) == {"serving"}


def test_asking_over_rest_imports_numpy_and_nothing_larger():
    code = """
import httpx2
from serving.client import RestClient
text = '{"outputs": {"classes": [["a"]], "scores": [[1.0]], "class_ids": [[0]]}}'
transport = httpx2.MockTransport(lambda _: httpx2.Response(200, text=text))
RestClient("http://server", "m", transport=transport).classify([b"1"])
"""
    code = "; ".join(code.strip().splitlines())
    modules = packages(modules_after(code))
    assert "numpy" in modules
    unwanted = {"tensorflow", "keras", "keras_vit", "grpc", "training", "PIL", "rich"}
    assert not modules & unwanted


def test_the_client_for_asyncio_imports_no_tensorflow():
    code = "from serving.client import AsyncRestClient as A; A('http://s', 'm')"
    modules = packages(modules_after(code))
    assert not modules & {"tensorflow", "keras", "keras_vit", "grpc", "training"}
