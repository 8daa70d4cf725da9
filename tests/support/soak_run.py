"""Soak test of the local server.

    python tests/support/soak_run.py models/digits --minutes 30

Needs /proc, for the server's memory.

A local server runs on copies of the newest version, which are swapped once a minute.
Exit status 1 if a request has an unexpected outcome or the server's memory grows.
"""

import argparse
import asyncio
import json
import os
import resource
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# As docs/local_server.md recommends: freed memory that glibc keeps is no leak.
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(8 * 2**20))
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(64 * 2**20))
sys.path.insert(0, str(Path(__file__).parents[2]))

from server_process import server_process
from soak import MEBIBYTE, Record, Soak, Versions, growth
from soak_requests import soak_cases

from serving.client import AsyncGrpcClient, AsyncRestClient, NotFound, RestClient
from serving.rollout.versions import version_folders


def soak_local_server(model: Path, seconds: float, swap_every: float) -> Record:
    """Soak a local server that serves copies of a model's newest version."""
    name = model.absolute().name
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        copies = Path(scratch, "versions")
        copies.mkdir()
        versions = Versions(list(version_folders(model).values())[-1], copies)
        flags = (
            f"--model_name={name}",
            f"--model_base_path={copies}",
            "--file_system_poll_wait_seconds=1",
        )
        with server_process(Path(scratch, "server.log"), *flags) as server:
            statm = Path(f"/proc/{server.process.pid}/statm")

            def memory() -> int:
                if server.process.poll() is not None:
                    raise ProcessLookupError("the server terminated")
                return int(statm.read_text().split()[1]) * resource.getpagesize()

            async def is_available(number: int) -> bool:
                def look():
                    with RestClient(server.rest, name, version=number) as client:
                        try:
                            return client.status()[0].state == "AVAILABLE"
                        except NotFound:
                            return False

                return await asyncio.to_thread(look)

            async def run() -> Record:
                with RestClient(server.rest, name) as client:
                    cases = soak_cases(client.metadata())
                async with (
                    AsyncRestClient(server.rest, name, timeout=30) as rest,
                    AsyncGrpcClient(server.grpc, name, timeout=30) as grpc,
                ):
                    return await Soak({"REST": rest, "gRPC": grpc}, cases).run(
                        seconds,
                        memory=memory,
                        versions=versions,
                        swap_every=swap_every,
                        is_available=is_available,
                    )

            return asyncio.run(run())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a model's folder, with its versions")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--swap_seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path, help="write the memory over time")
    args = parser.parse_args()
    record = soak_local_server(args.model, 60 * args.minutes, args.swap_seconds)
    print(f"{record.sent.total()} requests, {record.swaps} swaps")
    if grown := growth(record.memory):
        first, last = (size / MEBIBYTE for size in (grown.first, grown.last))
        print(f"memory: {first:.0f} MiB in the first third, {last:.0f} in the last")
    if args.json:
        args.json.write_text(json.dumps(record.memory))
    print(*record.complaints() or ["passed"], sep="\n")
    return int(bool(record.complaints()))


if __name__ == "__main__":
    sys.exit(main())
