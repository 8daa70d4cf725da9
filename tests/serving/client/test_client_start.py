"""Modules that importing and building a client over REST imports."""

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


def test_a_client_that_was_built_has_imported_no_more_than_its_http_library():
    http = modules_after("import httpx2; httpx2.Client()")
    built = "from serving.client import RestClient; RestClient('http://server', 'm')"
    modules = modules_after(built)
    assert packages(modules - http) == {"serving"}
    assert not packages(modules) & {"grpc", "numpy", "PIL"}


def test_classification_over_rest_imports_no_numpy():
    code = """
import httpx2
from serving.client import RestClient
text = '{"outputs": {"classes": [["a"]], "scores": [[1.0]], "class_ids": [[0]]}}'
transport = httpx2.MockTransport(lambda _: httpx2.Response(200, text=text))
RestClient("http://server", "m", transport=transport).classify([b"1"])
"""
    code = "; ".join(code.strip().splitlines())
    modules = packages(modules_after(code))
    unwanted = {"numpy", "tensorflow", "keras", "keras_vit", "grpc", "PIL", "rich"}
    assert not modules & unwanted


def test_a_client_over_grpc_has_imported_its_library_and_protobuf():
    code = "from serving.client import GrpcClient as G; G('127.0.0.1:1', 'm').close()"
    grpc = packages(modules_after("import grpc, google.protobuf.json_format"))
    assert packages(modules_after(code)) - grpc <= {"serving", "httpx2"} | packages(
        modules_after("import httpx2; httpx2.Client()")
    )


def test_the_client_for_asyncio_imports_no_tensorflow():
    code = "from serving.client import AsyncRestClient as A; A('http://s', 'm')"
    modules = packages(modules_after(code))
    assert not modules & {"tensorflow", "keras", "keras_vit", "grpc", "training"}
