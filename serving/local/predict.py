"""Predict: the checks of a request against its signature, for REST and gRPC alike."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .session import DEFAULT_SIGNATURE, LoadedModel, SignatureDef
from .status_errors import FailedPrecondition, InvalidArgument, ServingError
from .tensor_proto import array_from_proto

METHODS = tuple(f"tensorflow/serving/{m}" for m in ("predict", "classify", "regress"))

# Inputs are made into arrays only after the checks that TensorFlow Serving does first.
LazyInputs = Mapping[str, Callable[[], np.ndarray]]


class Run(NamedTuple):
    """What a request asks a session for.

    Attributes:
        key: of the signature.
        feeds: arrays by the alias of the input.
        fetches: aliases of the outputs.
    """

    key: str
    feeds: dict[str, np.ndarray]
    fetches: list[str]


def prepare(
    model: LoadedModel,
    signature_name: str,
    inputs: LazyInputs,
    output_filter: Sequence[str] = (),
    check_method: bool = False,
) -> Run:
    """Checks a request against its signature.

    Args:
        model: a loaded version.
        signature_name: its key, or "" for `serving_default`.
        inputs: by alias, a function that makes the array.
        output_filter: aliases of the wanted outputs; none means all.
        check_method: whether the signature's method_name must be one of `METHODS`.

    Returns:
        What is to be run.

    Raises:
        FailedPrecondition: no such signature.
        InvalidArgument: inputs or outputs that are not the signature's.
    """
    key = signature_name or DEFAULT_SIGNATURE
    if key not in model.signatures:
        raise FailedPrecondition(f'Serving signature key "{key}" not found.')
    signature = model.signatures[key]
    if check_method and signature.method_name not in METHODS:
        raise ServingError(
            "Expected prediction signature method_name to be one of "
            f"{_set(METHODS)}. Was: {signature.method_name}",
            "INTERNAL",
        )
    _check_count(signature, inputs)
    feeds = _feeds(signature, inputs)
    return Run(key, feeds, _fetches(signature, output_filter))


def _check_count(signature: SignatureDef, inputs: LazyInputs) -> None:
    sent, wanted = set(inputs), set(signature.inputs)
    too_few = len(sent) < len(wanted) and not signature.defaults
    if len(sent) > len(wanted) or too_few:
        raise InvalidArgument(
            f"input size does not match signature: {len(sent)}!={len(wanted)} "
            f"len({_set(sent)}) != len({_set(wanted)}). "
            f"Sent extra: {_set(sent - wanted)}. "
            f"Missing but required: {_set(wanted - sent)}."
        )


def _feeds(signature: SignatureDef, inputs: LazyInputs) -> dict[str, np.ndarray]:
    feeds = {}
    for alias in sorted(signature.inputs):
        if alias in inputs:
            feeds[alias] = inputs[alias]()
        elif alias in signature.defaults:
            feeds[alias] = array_from_proto(alias, signature.defaults[alias])
        else:
            raise InvalidArgument(
                f"Signature input alias: {alias}(feed name: "
                f"{signature.inputs[alias].name}) not found in request and no default "
                f"value provided. Inputs expected to be in the request {_set(inputs)}, "
                f"or default input alias set: {','.join(sorted(signature.defaults))}"
            )
    if extra := set(inputs) - set(feeds):
        used = ",".join(sorted(set(inputs) - extra))
        raise InvalidArgument(
            f"Inputs contains invalid name. Used request inputs: {used}, "
            f"request input: {','.join(sorted(inputs))}"
        )
    return feeds


def _fetches(signature: SignatureDef, output_filter: Sequence[str]) -> list[str]:
    seen: list[str] = []
    for alias in output_filter:
        if alias not in signature.outputs:
            raise InvalidArgument(
                f"output tensor alias not found in signature: {alias} "
                f"Outputs expected to be in the set {_set(signature.outputs)}."
            )
        if alias in seen:
            raise InvalidArgument(f"duplicate output tensor alias: {alias}")
        seen.append(alias)
    return seen or list(signature.outputs)


def _set(names: Iterable[str]) -> str:
    return f"{{{','.join(sorted(names))}}}"
