"""What is done with a loaded version: load it, warm it up, run requests on it."""

import functools
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    predict_pb2,
    regression_pb2,
)
from tensorflow_serving.apis.input_pb2 import Input
from tensorflow_serving.apis.model_pb2 import ModelSpec

from .batching_checks import Batching
from .examples import CLASSIFY, REGRESS, infer, multi_infer
from .flags import ServerOptions
from .metrics import Metrics, microseconds_since
from .predict import LazyInputs, prepare
from .session import LoadedModel, session_config
from .status_errors import ServingError
from .tensor_proto import array_from_proto
from .warmup import warm_up

_API = {CLASSIFY: "Classify", REGRESS: "Regress"}
_WARMUP_TIMEOUT = 600.0


class Operations:
    """Runs requests on loaded versions; timeouts are in seconds.

    Args:
        options: the flags.
        metrics: where loads and runs are counted.

    Raises:
        StartError: a file that the flags name is missing or refused.
    """

    def __init__(self, options: ServerOptions, metrics: Metrics):
        self._options = options
        self._batching = Batching(options)
        self._tags = options.saved_model_tags.split(",")
        self._session_config = session_config(options)
        self._metrics = metrics
        # Half of the threads, so that a run that does not end leaves the others.
        threads = min(options.rest_api_num_threads, options.grpc_max_threads)
        self._without_deadline = threading.Semaphore(max(1, threads // 2))

    def predict(
        self,
        model: LoadedModel,
        spec: ModelSpec,
        inputs: LazyInputs,
        timeout: float,
        output_filter: Sequence[str] = (),
    ) -> dict[str, np.ndarray]:
        """Outputs by alias of the signature that the ModelSpec names."""
        run = prepare(
            model,
            spec.signature_name,
            inputs,
            output_filter,
            self._options.enable_signature_method_name_check,
        )
        begin = time.perf_counter_ns()
        outputs = model.run(*run, timeout)
        self._count_time(begin, spec.name, "Predict")
        return outputs

    def infer(
        self, model: LoadedModel, request: Any, method: str, timeout: float
    ) -> Any:
        """The result of a ClassificationRequest or a RegressionRequest."""
        name = request.model_spec.name
        begin = time.perf_counter_ns()
        result = infer(
            model,
            request.model_spec.signature_name,
            method,
            request.input,
            timeout,
            self._options.enable_signature_method_name_check,
        )
        self._count_time(begin, name, _API[method])
        self._count_examples(name, request.input)
        return result

    def multi_infer(
        self,
        model: LoadedModel,
        request: inference_pb2.MultiInferenceRequest,
        timeout: float,
    ) -> list[Any]:
        """One result for each task of a MultiInferenceRequest."""
        results = multi_infer(
            model,
            request.tasks,
            request.input,
            timeout,
            self._options.enable_signature_method_name_check,
        )
        self._count_examples(request.tasks[0].model_spec.name, request.input)
        return results

    def _count_examples(self, name: str, given: Input) -> None:
        lists = (given.example_list, given.example_list_with_context)
        count = sum(len(examples.examples) for examples in lists)
        self._metrics.example_counts.add(count, name)
        self._metrics.example_count_total.add(count, name)

    def _count_time(self, begin: int, name: str, api: str) -> None:
        self._metrics.runtime_latency.add(microseconds_since(begin), name, api, "TF1")

    def load(self, folder: str) -> LoadedModel:
        """Loads and warms up a version; how it went is counted."""
        begin = time.perf_counter_ns()
        try:
            model = LoadedModel(
                folder,
                self._tags,
                self._session_config,
                self._count_run,
                self._without_deadline,
                self._batching.queue(folder),
            )
        except ServingError:
            self._metrics.load_attempts.add(1, folder, "fail")
            raise
        self._metrics.load_attempts.add(1, folder, "success")
        self._metrics.load_latency.add(microseconds_since(begin), folder)
        if self._options.enable_model_warmup:
            self._warm_up(model, folder)
        return model

    def _count_run(self, microseconds: int) -> None:
        self._metrics.graph_runs.add(1)
        self._metrics.graph_run_time.add(microseconds)
        self._metrics.graph_run_times.add(microseconds)

    def _warm_up(self, model: LoadedModel, folder: str) -> None:
        begin = time.perf_counter_ns()
        iterations = self._options.num_request_iterations_for_warmup
        try:
            count = warm_up(folder, functools.partial(self._run, model), iterations)
        except ServingError:
            model.close()
            raise
        if count:
            self._metrics.warmup_records.add(count, folder)
            self._metrics.warmup_latency.add(microseconds_since(begin), folder, "OK")

    def _run(self, model: LoadedModel, request: Any) -> None:
        """Runs a warm-up request, whatever it is."""
        match request:
            case predict_pb2.PredictRequest():
                spec, inputs = request.model_spec, lazy_inputs(request)
                self.predict(
                    model, spec, inputs, _WARMUP_TIMEOUT, request.output_filter
                )
            case classification_pb2.ClassificationRequest():
                self.infer(model, request, CLASSIFY, _WARMUP_TIMEOUT)
            case regression_pb2.RegressionRequest():
                self.infer(model, request, REGRESS, _WARMUP_TIMEOUT)
            case inference_pb2.MultiInferenceRequest():
                self.multi_infer(model, request, _WARMUP_TIMEOUT)


def lazy_inputs(request: predict_pb2.PredictRequest) -> LazyInputs:
    """The inputs of a PredictRequest, each read when it is needed."""
    return {
        alias: functools.partial(array_from_proto, alias, proto)
        for alias, proto in request.inputs.items()
    }
