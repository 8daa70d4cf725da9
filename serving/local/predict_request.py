"""Predict requests: check inputs and outputs against the signature, then run it."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

from .session import DEFAULT_SIGNATURE, LoadedModel
from .status_errors import FailedPrecondition, InvalidArgument
from .tensor_proto import Arrays, array_from_proto


def predict(
    model: LoadedModel,
    signature_name: str,
    inputs: Mapping[str, np.ndarray],
    timeout: float,
    output_filter: Sequence[str] = (),
) -> Arrays:
    """Run a signature; returns the outputs by alias.

    Args:
        output_filter: aliases of the wanted outputs; none means all.

    Raises:
        FailedPrecondition: no such signature.
        InvalidArgument: inputs or outputs that are not the signature's.
    """
    signature = check_inputs(model, signature_name, inputs)
    key = signature_name or DEFAULT_SIGNATURE
    feeds = _feeds(signature, inputs)
    return model.run(key, feeds, _fetches(signature, output_filter), timeout)


def check_inputs(
    model: LoadedModel, signature_name: str, inputs: Collection[str]
) -> SignatureDef:
    """The signature that a request names, which has as many inputs as the request.

    Raises:
        FailedPrecondition: no such signature.
        InvalidArgument: more inputs, or fewer.
    """
    key = signature_name or DEFAULT_SIGNATURE
    if key not in model.signatures:
        raise FailedPrecondition(f'Serving signature key "{key}" not found.')
    signature = model.signatures[key]
    sent, wanted = set(inputs), set(signature.inputs)
    too_few = len(sent) < len(wanted) and not signature.defaults
    if len(sent) > len(wanted) or too_few:
        raise InvalidArgument(
            f"input size does not match signature: {len(sent)}!={len(wanted)} "
            f"len({_set(sent)}) != len({_set(wanted)}). "
            f"Sent extra: {_set(sent - wanted)}. "
            f"Missing but required: {_set(wanted - sent)}."
        )
    return signature


def _feeds(signature: SignatureDef, inputs: Mapping[str, np.ndarray]) -> Arrays:
    feeds = {}
    for alias in sorted(signature.inputs):
        if alias in inputs:
            feeds[alias] = inputs[alias]
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
    for position, alias in enumerate(output_filter):
        if alias not in signature.outputs:
            raise InvalidArgument(
                f"output tensor alias not found in signature: {alias} "
                f"Outputs expected to be in the set {_set(signature.outputs)}."
            )
        if alias in output_filter[:position]:
            raise InvalidArgument(f"duplicate output tensor alias: {alias}")
    return list(output_filter) or list(signature.outputs)


def _set(names: Iterable[str]) -> str:
    return f"{{{','.join(sorted(names))}}}"
