"""The operations of TensorFlow Serving on its own messages, for REST and gRPC alike."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    predict_pb2,
    regression_pb2,
)
from tensorflow_serving.apis.input_pb2 import Input
from tensorflow_serving.apis.model_pb2 import ModelSpec

from .batching_checks import Batching
from .classify_regress import CLASSIFY, REGRESS, infer, multi_infer
from .flags import ServerOptions
from .metrics import Metrics, microseconds_since
from .predict_request import check_inputs, predict
from .server_core import ServedModels
from .session import DEFAULT_SIGNATURE, LoadedModel, session_config
from .status_errors import InvalidArgument, StatusError
from .tensor_proto import Arrays, array_to_proto, arrays_from_protos
from .warmup import run_request, warm_up


class InferenceService:
    """The operations of a server, independent of the transport.

    Every method raises `StatusError` with TensorFlow Serving's message; timeouts are
    in seconds.

    Raises:
        StartError: a file that the flags name is missing or refused.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.metrics = Metrics()
        self.models = ServedModels(options, self.load)
        self._batching = Batching(options)
        self._tags = options.saved_model_tags.split(",")
        self._session_config = session_config(options)
        self._stopped = False

    def stop(self) -> None:
        """Free the models; running and later requests are UNAVAILABLE."""
        self._stopped = True
        self.models.stop()

    def load(self, folder: str) -> LoadedModel:
        """Load and warm up a version."""
        begin = time.perf_counter_ns()
        try:
            queue = self._batching.queue(folder)
            model = LoadedModel(
                folder, self._tags, self._session_config, self._count_run, queue
            )
        except StatusError:
            self.metrics.load_attempts.add(1, folder, "fail")
            raise
        self.metrics.load_attempts.add(1, folder, "success")
        self.metrics.load_latency.add(microseconds_since(begin), folder)
        if self.options.enable_model_warmup:
            self._warm_up(model, folder)
        return model

    def _warm_up(self, model: LoadedModel, folder: str) -> None:
        begin = time.perf_counter_ns()
        iterations = self.options.num_request_iterations_for_warmup
        try:
            run = functools.partial(run_request, model)
            count = warm_up(folder, run, iterations)
        except StatusError:
            model.close()
            raise
        if count:
            self.metrics.warmup_records.add(count, folder)
            self.metrics.warmup_latency.add(microseconds_since(begin), folder, "OK")

    def _count_run(self, microseconds: int) -> None:
        self.metrics.graph_runs.add(1)
        self.metrics.graph_run_time.add(microseconds)
        self.metrics.graph_run_times.add(microseconds)

    def predict(
        self, request: predict_pb2.PredictRequest, timeout: float
    ) -> predict_pb2.PredictResponse:
        """PredictionService.Predict."""
        spec = _spec_of(request)

        def read(model: LoadedModel) -> Mapping[str, np.ndarray]:
            check_inputs(model, spec.signature_name, request.inputs)
            return arrays_from_protos(request.inputs)

        number, outputs = self.predict_arrays(
            spec, read, timeout, request.output_filter
        )
        response = predict_pb2.PredictResponse(model_spec=_resolved(spec, number))
        as_content = self.options.enable_serialization_as_tensor_content
        for alias, array in outputs.items():
            response.outputs[alias].CopyFrom(array_to_proto(array, as_content))
        return response

    def predict_arrays(
        self,
        spec: ModelSpec,
        read: Callable[[LoadedModel], Mapping[str, np.ndarray]],
        timeout: float,
        output_filter: Sequence[str] = (),
    ) -> tuple[int, Arrays]:
        """Predict on arrays; returns the version number and the outputs by alias.

        Args:
            read: makes the inputs, by alias, for the signatures of that version.
            output_filter: aliases of the wanted outputs; none means all.
        """
        with self.models.use(spec) as (model, number):
            inputs = read(model)
            with self._timed(spec.name, "Predict"):
                outputs = predict(
                    model,
                    spec.signature_name,
                    inputs,
                    timeout,
                    output_filter,
                )
        return number, outputs

    def classify(
        self, request: classification_pb2.ClassificationRequest, timeout: float
    ) -> classification_pb2.ClassificationResponse:
        """PredictionService.Classify."""
        response = classification_pb2.ClassificationResponse()
        return self._infer(request, CLASSIFY, "Classify", response, timeout)

    def regress(
        self, request: regression_pb2.RegressionRequest, timeout: float
    ) -> regression_pb2.RegressionResponse:
        """PredictionService.Regress."""
        response = regression_pb2.RegressionResponse()
        return self._infer(request, REGRESS, "Regress", response, timeout)

    def _infer(
        self, request: Any, method: str, api: str, response: Any, timeout: float
    ) -> Any:
        spec = _spec_of(request)
        with self.models.use(spec) as (model, number), self._timed(spec.name, api):
            result = infer(
                model,
                spec.signature_name,
                method,
                request.input,
                timeout,
            )
        self._count_examples(spec.name, request.input)
        response.result.CopyFrom(result)
        response.model_spec.CopyFrom(_resolved(spec, number))
        return response

    def multi_inference(
        self, request: inference_pb2.MultiInferenceRequest, timeout: float
    ) -> inference_pb2.MultiInferenceResponse:
        """PredictionService.MultiInference; the first task names the version."""
        first = request.tasks[0].model_spec if request.tasks else ModelSpec()
        with self.models.use(first) as (model, number):
            results = multi_infer(model, request.tasks, request.input, timeout)
        self._count_examples(first.name, request.input)
        response = inference_pb2.MultiInferenceResponse()
        for task, result in zip(request.tasks, results, strict=True):
            answer = response.results.add(model_spec=_resolved(task.model_spec, number))
            if task.method_name == CLASSIFY:
                answer.classification_result.CopyFrom(result)
            else:
                answer.regression_result.CopyFrom(result)
        return response

    @contextlib.contextmanager
    def _timed(self, model: str, api: str) -> Iterator[None]:
        begin = time.perf_counter_ns()
        yield
        self.metrics.runtime_latency.add(microseconds_since(begin), model, api, "TF1")

    def _count_examples(self, name: str, given: Input) -> None:
        lists = (given.example_list, given.example_list_with_context)
        count = sum(len(examples.examples) for examples in lists)
        self.metrics.example_counts.add(count, name)
        self.metrics.example_count_total.add(count, name)

    def get_model_metadata(
        self, request: get_model_metadata_pb2.GetModelMetadataRequest
    ) -> get_model_metadata_pb2.GetModelMetadataResponse:
        """PredictionService.GetModelMetadata: the SignatureDefs."""
        spec = _spec_of(request)
        if not request.metadata_field:
            raise InvalidArgument(
                "GetModelMetadataRequest must specify at least one metadata_field"
            )
        for field in request.metadata_field:
            if field != "signature_def":
                raise InvalidArgument(f"Metadata field {field} is not supported")
        signatures = get_model_metadata_pb2.SignatureDefMap()
        with self.models.use(spec) as (model, number):
            for key, signature in model.signatures.items():
                signatures.signature_def[key].CopyFrom(signature)
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.model_spec.name = spec.name
        response.model_spec.version.value = number
        response.metadata["signature_def"].Pack(signatures)
        return response

    def get_model_status(
        self, request: get_model_status_pb2.GetModelStatusRequest
    ) -> get_model_status_pb2.GetModelStatusResponse:
        """ModelService.GetModelStatus."""
        return self.models.status(_spec_of(request))

    def reload_config(
        self, request: model_management_pb2.ReloadConfigRequest
    ) -> model_management_pb2.ReloadConfigResponse:
        """ModelService.HandleReloadConfigRequest: returns once models are loaded."""
        self.models.reload(request.config)
        response = model_management_pb2.ReloadConfigResponse()
        response.status.SetInParent()
        return response

    @contextlib.contextmanager
    def counted(self, model: str, api: str, entrypoint: str) -> Iterator[None]:
        """Count the request that the block answers, and its latency."""
        begin = time.perf_counter_ns()
        try:
            with self.unless_stopped():
                yield
        except StatusError as error:
            self.metrics.request_count.add(1, model, error.code)
            raise
        self.metrics.request_count.add(1, model, "OK")
        self.metrics.request_latency.add(
            microseconds_since(begin), model, api, entrypoint
        )

    @contextlib.contextmanager
    def unless_stopped(self) -> Iterator[None]:
        """Make every error UNAVAILABLE once the server is stopped."""
        stopping = StatusError("the server is stopping", "UNAVAILABLE")
        if self._stopped:
            raise stopping
        try:
            yield
        except Exception as error:
            # A session that is closed fails in many ways, none of them the request's.
            if self._stopped:
                raise stopping from error
            raise


def _spec_of(request: Any) -> ModelSpec:
    if not request.HasField("model_spec"):
        raise InvalidArgument("Missing ModelSpec")
    return request.model_spec


def _resolved(spec: ModelSpec, number: int) -> ModelSpec:
    """The ModelSpec of a response: the version as a number, the signature by name."""
    resolved = ModelSpec(
        name=spec.name, signature_name=spec.signature_name or DEFAULT_SIGNATURE
    )
    resolved.version.value = number
    return resolved
