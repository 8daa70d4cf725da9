"""The operations of TensorFlow Serving on its own messages, for REST and gRPC alike."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
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
from tensorflow_serving.apis.model_pb2 import ModelSpec

from .examples import CLASSIFY, REGRESS
from .flags import ServerOptions
from .metrics import Metrics, microseconds_since
from .operations import Operations, lazy_inputs
from .predict import LazyInputs
from .server_core import ServedModels
from .session import DEFAULT_SIGNATURE, LoadedModel
from .status_errors import InvalidArgument, ServingError
from .tensor_proto import array_to_proto


class Service:
    """What a server can do, independent of how it is asked.

    Every method raises `ServingError` in TensorFlow Serving's words; timeouts are in
    seconds.

    Args:
        options: the flags.
    """

    def __init__(self, options: ServerOptions):
        self.options = options
        self.metrics = Metrics()
        self._operations = Operations(options, self.metrics)
        self.models = ServedModels(options, self._operations.load)
        self._stopped = False

    def stop(self) -> None:
        """Frees the models; requests that run or come later are UNAVAILABLE."""
        self._stopped = True
        self.models.stop()

    def predict(
        self, request: predict_pb2.PredictRequest, timeout: float
    ) -> predict_pb2.PredictResponse:
        """PredictionService.Predict."""
        spec = _spec_of(request)
        with self.models.use(spec) as (model, number):
            outputs = self._operations.predict(
                model, spec, lazy_inputs(request), timeout, request.output_filter
            )
        response = predict_pb2.PredictResponse(model_spec=_resolved(spec, number))
        as_content = self.options.enable_serialization_as_tensor_content
        for alias, array in outputs.items():
            response.outputs[alias].CopyFrom(array_to_proto(array, as_content))
        return response

    def predict_arrays(
        self,
        spec: ModelSpec,
        read: Callable[[LoadedModel], LazyInputs],
        timeout: float,
    ) -> dict[str, np.ndarray]:
        """Predict on arrays.

        Args:
            spec: the version and the signature.
            read: makes the inputs for that version's signatures.
            timeout: seconds.

        Returns:
            The outputs by alias.
        """
        with self.models.use(spec) as (model, _):
            inputs = read(model)
            return self._operations.predict(model, spec, inputs, timeout)

    def classify(
        self, request: classification_pb2.ClassificationRequest, timeout: float
    ) -> classification_pb2.ClassificationResponse:
        """PredictionService.Classify."""
        answer = classification_pb2.ClassificationResponse()
        return self._infer(request, CLASSIFY, answer, timeout)

    def regress(
        self, request: regression_pb2.RegressionRequest, timeout: float
    ) -> regression_pb2.RegressionResponse:
        """PredictionService.Regress."""
        answer = regression_pb2.RegressionResponse()
        return self._infer(request, REGRESS, answer, timeout)

    def _infer(self, request: Any, method: str, answer: Any, timeout: float) -> Any:
        spec = _spec_of(request)
        with self.models.use(spec) as (model, number):
            result = self._operations.infer(model, request, method, timeout)
        answer.result.CopyFrom(result)
        answer.model_spec.CopyFrom(_resolved(spec, number))
        return answer

    def multi_inference(
        self, request: inference_pb2.MultiInferenceRequest, timeout: float
    ) -> inference_pb2.MultiInferenceResponse:
        """PredictionService.MultiInference; the first task names the version."""
        first = request.tasks[0].model_spec if request.tasks else ModelSpec()
        with self.models.use(first) as (model, number):
            results = self._operations.multi_infer(model, request, timeout)
        response = inference_pb2.MultiInferenceResponse()
        for task, result in zip(request.tasks, results, strict=True):
            answer = response.results.add(model_spec=_resolved(task.model_spec, number))
            if task.method_name == CLASSIFY:
                answer.classification_result.CopyFrom(result)
            else:
                answer.regression_result.CopyFrom(result)
        return response

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
        """ModelService.HandleReloadConfigRequest: returns once models are loaded.

        The answer tells by how much the metrics that are named have grown meanwhile.
        """
        before = self._values(request.metric_names)
        self.models.reload(request.config)
        response = model_management_pb2.ReloadConfigResponse()
        response.status.SetInParent()
        for name, value in self._values(request.metric_names).items():
            response.metric.add(name=name, int64_value_increase=value - before[name])
        return response

    def _values(self, metric_names: Iterable[str]) -> dict[str, int]:
        """Of each metric the first number; 0 for histograms and unknown names."""
        known = self.metrics.by_name
        return {
            name: known[name].first if name in known else 0 for name in metric_names
        }

    @contextlib.contextmanager
    def counted(self, model: str, api: str, entrypoint: str) -> Iterator[None]:
        """Counts the request that the block answers, and how long it takes."""
        begin = time.perf_counter_ns()
        try:
            if self._stopped:
                raise ServingError("the server is stopping", "UNAVAILABLE")
            yield
        except ServingError as error:
            self.metrics.request_count.add(1, model, error.code)
            raise
        self.metrics.request_count.add(1, model, "OK")
        self.metrics.request_latency.add(
            microseconds_since(begin), model, api, entrypoint
        )


def _spec_of(request: Any) -> ModelSpec:
    if not request.HasField("model_spec"):
        raise InvalidArgument("Missing ModelSpec")
    return request.model_spec


def _resolved(spec: ModelSpec, number: int) -> ModelSpec:
    """The ModelSpec of an answer: the version as a number, the signature by name."""
    resolved = ModelSpec(
        name=spec.name, signature_name=spec.signature_name or DEFAULT_SIGNATURE
    )
    resolved.version.value = number
    return resolved
