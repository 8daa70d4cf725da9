"""A short soak of the local server, and the faults that a soak detects."""

import asyncio

import numpy as np
import pytest
from few_formats import few_formats
from simulated_time import simulated
from soak import MEBIBYTE, Soak
from soak_requests import Case
from soak_run import soak_local_server

from serving.client import ServingError
from serving.client.protocol import Call


class FailingClient:
    """Answers the first request and refuses the others."""

    def __init__(self):
        self.answered = False

    async def ask_once(self, call):
        await asyncio.sleep(0.01)
        if self.answered:
            raise ServingError("oh")
        self.answered = True
        return {"scores": np.array([0.5])}


def test_a_fault_and_growing_memory_are_reported():
    cases = [Case("REST", "valid", Call("valid", None))]
    record = simulated(Soak({"REST": FailingClient()}, cases).run(1.0))
    record.memory = [(time, (500 + time / 5) * MEBIBYTE) for time in range(1800)]
    fault, growth = record.complaints()
    assert fault.endswith("x REST valid: ServingError instead of an answer: oh")
    assert growth.startswith("memory grew by ")


@pytest.mark.slow
def test_a_short_soak_of_the_local_server(tiny_vit, tmp_path):
    from serving.export.publish import publish

    with few_formats():
        publish(tiny_vit(), tmp_path / "tiny")
    record = soak_local_server(tmp_path / "tiny", seconds=5, swap_every=1)
    assert record.complaints() == []
    assert record.swaps >= 1
    assert record.sent.total() > 200
