"""The same Vision Transformer in each library: one forward pass or training step of it.

All have random weights and biases. Training is AdamW with weight decay, the gradients
clipped to a global norm of 1, softmax cross-entropy. bfloat16 is bfloat16 weights in a
forward pass, and mixed precision with float32 weights in training. `benchmarks.turns`
starts one process of this module for each library.
"""

import importlib
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from benchmarks.processes import answer

if TYPE_CHECKING:
    import numpy as np

    from keras_vit import VisionTransformer

# Each function imports its own libraries: the process holds nothing else.
TIMM = {"S/16": "vit_small_patch16_224", "B/16": "vit_base_patch16_224"}
TIMM |= {"Ti/16": "vit_tiny_patch16_224", "L/16": "vit_large_patch16_224"}


class Kind(NamedTuple):
    """A model of another family, whose tokens are the output.

    Args:
        size: Whose sizes it has.
        options: Of ours.
        timm: Architecture of timm.
        transformers: Name of transformers' classes without `Model` and `Config`.
        config: Arguments of that config beside the sizes.
    """

    size: str
    options: dict[str, object]
    timm: str
    transformers: str
    config: dict[str, object]


KINDS = {
    "DINOv3 B/16": Kind(
        "B/16",
        {
            "rotary": "centered",
            "position_embedding": "none",
            "register_tokens": 4,
            **dict.fromkeys(("query_bias", "key_bias", "value_bias"), False),
            "layer_scale": 1e-5,
            "norm_epsilon": 1e-5,
            "gelu": "exact",
        },
        "vit_base_patch16_dinov3",
        "DINOv3ViT",
        {"num_register_tokens": 4, "query_bias": False, "value_bias": False},
    ),
    "CLIP L/14": Kind(
        "L/14",
        {
            "embedding_norm": True,
            "embedding_bias": False,
            "norm_epsilon": 1e-5,
            "gelu": "quick",
        },
        "vit_large_patch14_clip_quickgelu_224",
        "CLIPVision",
        {},
    ),
}
CLASSES = 1000
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 0.1
CACHED_STEPS = 100  # in a call of `fit`, whose own time would be most of one step's


class Case(NamedTuple):
    """What is measured: a training step or a forward pass."""

    training: bool
    variant: str
    image_size: int
    batch: int
    dtype: str  # "float32" or "bfloat16"
    threads: int  # that a library may use
    gelu: Literal["own", "exact", "tanh"] = "own"  # each library's, or that of all


Step = Callable[[], object]


def _import(packages: tuple[str, ...], threads: int) -> None:
    """Import packages that use so many threads."""
    if "torch" in packages:
        from benchmarks import torch_libraries  # noqa: F401  isort: skip
        import torch

        torch.set_num_threads(threads)
    if "tensorflow" in packages:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    for package in packages:
        importlib.import_module(package)


def keras_vit(case: Case, **options: Any) -> Step:
    """keras-vit; training by the trainer of `keras-vit fit`, with these options."""
    model = our_model(case)
    if not case.training:
        return _keras_forward(model, case)
    return _keras_fit(our_trainer(model, **options), case)


def frozen_features(case: Case) -> Step:
    """What `data.cache_features` computes of a batch of images, once."""
    from training.probe.features import frozen_model

    return _keras_forward(frozen_model(our_model(case)), case)


def cached_features(case: Case) -> Step:
    """Steps of `data.cache_features`, on features of `case.batch` images each."""
    from training.probe.head_only import HeadModel

    trainer = our_trainer(HeadModel(our_model(case)))
    return _keras_fit(trainer, case, trainer.model.input_shape[1:], CACHED_STEPS)


def stock_keras(case: Case) -> Step:
    """keras-vit's model, trained by Keras's own `fit`."""
    return _keras_fit(_compiled(our_model(case)), case)


def keras_hub(case: Case) -> Step:
    """keras-hub's classifier (its GELU is the exact one)."""
    import keras_hub

    from keras_vit.specs import parse_variant

    spec, patch_size = parse_variant(case.variant)
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(case.image_size, case.image_size, 3),
        patch_size=patch_size,
        num_layers=spec.depth,
        num_heads=spec.heads,
        hidden_dim=spec.width,
        mlp_dim=spec.mlp_dim,
        dtype=_policy(case),
    )
    model = keras_hub.models.ViTImageClassifier(
        backbone, preprocessor=None, num_classes=CLASSES, dtype=_policy(case)
    )
    if not case.training:
        return _keras_forward(model, case)
    return _keras_fit(_compiled(model), case)


def timm(case: Case, compiled: bool = False, device: str = "cpu") -> Step:
    """timm, whose attention is PyTorch's `scaled_dot_product_attention`."""
    model = _timm_model(case)
    return _torch_step(model, case, compiled, device)


def _timm_model(case: Case) -> Any:
    import timm

    if kind := KINDS.get(case.variant):
        return timm.create_model(
            kind.timm, img_size=case.image_size, num_classes=0, global_pool=""
        )
    layer = "gelu_tanh" if case.gelu == "tanh" else "gelu"
    name, size = TIMM[case.variant], case.image_size
    return timm.create_model(name, img_size=size, act_layer=layer)


def transformers(case: Case) -> Step:
    """transformers, with the same attention function of PyTorch."""
    import transformers

    from keras_vit.specs import parse_variant

    kind = KINDS.get(case.variant)
    spec, patch_size = parse_variant(kind.size if kind else case.variant)
    sizes = {
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.heads,
        "intermediate_size": spec.mlp_dim,
        "image_size": case.image_size,
        "patch_size": patch_size,
    }
    if kind is None:
        gelu = "gelu_pytorch_tanh" if case.gelu == "tanh" else "gelu"
        config = transformers.ViTConfig(**sizes, hidden_act=gelu)
        config.num_labels = CLASSES
        model_class = transformers.ViTForImageClassification
    else:
        config_class = getattr(transformers, f"{kind.transformers}Config")
        config = config_class(**sizes, **kind.config)
        model_class = getattr(transformers, f"{kind.transformers}Model")
    config._attn_implementation = "sdpa"  # noqa: SLF001
    return _torch_step(model_class(config), case)


def onnxruntime(case: Case, int8: bool = False) -> Step:
    """onnxruntime, with the file that timm's model becomes in PyTorch's exporter."""
    import torch

    model = _timm_model(case).eval()
    _random_weights(model)
    images = torch.randn(case.batch, 3, case.image_size, case.image_size)

    def write(path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(model, (images,), path, dynamo=False)

    return _onnx_session(write, images.numpy(), case, int8)


def keras_vit_onnx(case: Case, int8: bool = False) -> Step:
    """onnxruntime, with the file of `keras-vit export --format onnx`."""
    import numpy as np

    from keras_vit import devices
    from serving.export import onnx_file

    model = our_model(case)
    random = np.random.default_rng(0)
    _fill(model, random)
    size = (case.batch, case.image_size, case.image_size, 3)
    images = random.normal(size=size)

    def write(path: Path) -> None:
        with devices.making_graphs_for("gpu"):  # as an export does
            onnx_file.write(model, path, "pixels in [-1, 1]")

    return _onnx_session(write, images.astype("float32"), case, int8)


def _onnx_session(
    write: Callable[[Path], None], images: "np.ndarray", case: Case, int8: bool
) -> Step:
    """Runs a file; in int8 it is quantized as by `keras-vit export --quantize int8`."""
    import onnxruntime

    from serving.export.quantization import quantize_onnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        write(path)
        if int8:
            float32, path = path, path.with_stem("int8")
            quantize_onnx(float32, path, [images])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = case.threads
        session = onnxruntime.InferenceSession(path, options)
    inputs = {session.get_inputs()[0].name: images}
    return lambda: session.run(None, inputs)


def _policy(case: Case) -> str:
    half = "mixed_bfloat16" if case.training else "bfloat16"
    return half if case.dtype == "bfloat16" else "float32"


def _keras_forward(model: Any, case: Case) -> Step:
    import numpy as np
    import tensorflow as tf

    _fill(model, np.random.default_rng(0))
    images = tf.random.normal((case.batch, case.image_size, case.image_size, 3))
    call = tf.function(lambda images: model(images, training=False))
    return lambda: call(images)


def _fill(model: Any, random: "np.random.Generator") -> None:
    """Random weights: zero biases would let TensorFlow remove the additions."""
    for weight in model.weights:
        weight.assign(random.normal(scale=0.02, size=weight.shape))


def our_model(case: Case) -> "VisionTransformer":
    """keras-vit's model of a case."""
    import keras_vit

    if kind := KINDS.get(case.variant):
        return keras_vit.VisionTransformer.from_variant(
            kind.size,
            image_size=case.image_size,
            classes=None,
            pooling=None,
            dtype=_policy(case),
            **kind.options,
        )
    gelu = "tanh" if case.gelu == "own" else case.gelu
    return keras_vit.VisionTransformer.from_variant(
        case.variant, image_size=case.image_size, gelu=gelu, dtype=_policy(case)
    )


def our_trainer(
    model: Any,
    trainer_class: Any = None,
    accumulation: int = 1,
    jit_compile: bool = False,
    lora_rank: int | None = None,
    **options: Any,
) -> Any:
    """The trainer of `keras-vit fit`, by default TensorFlow's, with these options."""
    from training.engine.lora import enable_lora
    from training.engine.optimizer import make_optimizer
    from training.model_config import LoraLayer
    from training.recipe import OptimizerConfig

    config = OptimizerConfig(
        learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY, **options
    )
    if lora_rank is not None:
        enable_lora(model, lora_rank, get_args(LoraLayer))
    if trainer_class is None:
        from training.engine import tensorflow_trainer

        trainer_class = tensorflow_trainer.TensorFlowTrainer
    trainer = trainer_class(model, accumulation=accumulation, clip_norm=1.0)
    optimizer = make_optimizer(config, config.learning_rate, model)
    trainer.compile(optimizer, jit_compile=jit_compile)
    return trainer


def _compiled(model: Any) -> Any:
    """Keras's own `compile`, with the same update."""
    import keras

    optimizer = keras.optimizers.AdamW(LEARNING_RATE, WEIGHT_DECAY, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(
        [w for w in model.trainable_weights if not w.path.endswith("/kernel")]
    )
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    return model


def _keras_fit(
    trainer: Any, case: Case, shape: tuple[int, ...] | None = None, steps: int = 1
) -> Step:
    import numpy as np
    import tensorflow as tf

    images = tf.random.normal(
        (case.batch, *(shape or (case.image_size, case.image_size, 3)))
    )
    labels = np.eye(CLASSES, dtype="float32")[: case.batch]
    data = tf.data.Dataset.from_tensors((images, labels)).repeat()
    return lambda: trainer.fit(data, steps_per_epoch=steps, epochs=1, verbose=0)


def _random_weights(model: Any) -> None:
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02)


def _torch_step(
    model: Any, case: Case, compiled: bool = False, device: str = "cpu"
) -> Step:
    """A forward pass or training step in PyTorch, on a device."""
    import torch

    _random_weights(model)
    images = torch.randn(case.batch, 3, case.image_size, case.image_size, device=device)
    half = case.dtype == "bfloat16"
    model = model.to(device)
    if device != "cpu":
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    if not case.training:
        model.eval()
        if half:
            model, images = model.bfloat16(), images.bfloat16()
        call = torch.compile(model, dynamic=False) if compiled else model

        def forward() -> object:
            with torch.inference_mode():
                return call(images)

        return forward

    optimizer = torch.optim.AdamW(
        model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True
    )
    labels = torch.arange(case.batch, device=device) % CLASSES
    call = torch.compile(model, dynamic=False) if compiled else model

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=half):
            outputs = call(images)
            logits = getattr(outputs, "logits", outputs)
            loss = torch.nn.functional.cross_entropy(logits, labels)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


# By the packages whose memory does not count: who takes part, and makes a step.
LIBRARIES: dict[tuple[str, ...], dict[str, Callable[[Case], Step]]] = {
    ("tensorflow",): {
        "keras-vit": keras_vit,
        "keras-vit, moving average": partial(keras_vit, ema=0.9999),
        "keras-vit, 4 micro-batches": partial(keras_vit, accumulation=4),
        "keras-vit, XLA": partial(keras_vit, jit_compile=True),
        "keras-vit, LoRA of rank 8": partial(keras_vit, lora_rank=8),
        "keras-vit, classifier alone": partial(keras_vit, frozen=("^(?!head/)",)),
        "keras-vit, features, once": frozen_features,
        f"keras-vit, {CACHED_STEPS} steps on features": cached_features,
        "keras-vit, ONNX": keras_vit_onnx,
        "keras-vit, ONNX int8": partial(keras_vit_onnx, int8=True),
        "stock Keras": stock_keras,
        "keras-hub": keras_hub,
    },
    ("torch", "timm"): {
        "timm": timm,
        "timm, torch.compile": partial(timm, compiled=True),
        "onnxruntime": onnxruntime,
        "onnxruntime, int8": partial(onnxruntime, int8=True),
    },
    ("torch", "transformers"): {"transformers": transformers},
}


def _memory_mb(field: str) -> int:
    with open("/proc/self/status", encoding="utf-8") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields[field].split()[0]) // 1024


def _turns(name: str, case: Case) -> Iterator[dict[str, Any]]:
    """Figures of each turn, of which the first one builds and compiles."""
    packages = next(key for key, libraries in LIBRARIES.items() if name in libraries)
    _import(packages, case.threads)
    imported, step = _memory_mb("VmRSS"), None
    while True:
        cpu, wall = time.process_time(), time.perf_counter()
        if step is None:
            step = LIBRARIES[packages][name](case)
            step()
        step()
        yield {
            "cpu_seconds": time.process_time() - cpu,
            "seconds": time.perf_counter() - wall,
            "memory_mb": _memory_mb("VmHWM") - imported,
        }


if __name__ == "__main__":
    turns = _turns(sys.argv[1], Case(*json.loads(sys.argv[2])))
    answer(lambda: next(turns))
