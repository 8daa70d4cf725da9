"""`tpu-check`: findings in HLO, and their absence in the trainer's steps."""

import configparser
import dataclasses
import importlib.util
import pathlib
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import python_process
import tensorflow as tf
from training_commands import main

from training.engine.strategy import is_chief, worker_count
from training.errors import TrainingError
from training.recipe import (
    AugmentationConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    SelfSupervisionConfig,
)
from training.tpu import tpu_check

ROOT = pathlib.Path(__file__).parents[3]

# Each compiles for a CPU, or runs in a graph; none should be in a step on a TPU.
BAD = {
    "boolean_mask": (lambda x: tf.boolean_mask(x, x[:, 0] > 0), "dynamic shapes"),
    "where": (lambda x: tf.where(x > 0), "dynamic shapes"),
    "unique": (lambda x: tf.unique(x[:, 0])[0], "dynamic shapes"),
    # The shape of the result is static.
    "sum of some": (
        lambda x: tf.reduce_sum(tf.boolean_mask(x, x[:, 0] > 0)),
        "dynamic shapes",
    ),
    "float64": (lambda x: tf.cast(tf.cast(x, tf.float64) * 2, tf.float32), "float64"),
    "float16": (
        lambda x: tf.cast(tf.cast(x, tf.float16) * 2, tf.float32),
        "float16 (a TPU computes in bfloat16)",
    ),
    "py_function": (
        lambda x: tf.py_function(lambda value: value, [x], tf.float32),
        "does not lower: EagerPyFunc",
    ),
    "strings": (lambda x: tf.strings.as_string(x), "does not lower: AsString"),
    "bicubic": (
        lambda x: tf.image.resize(x[..., None, None], [8, 8], "bicubic"),
        "does not lower: ResizeBicubic",
    ),
    "antialias": (
        lambda x: tf.image.resize(x[..., None, None], [8, 8], antialias=True),
        "does not lower: ScaleAndTranslate",
    ),
    "qr": (
        lambda x: tf.linalg.qr(x),
        "custom call: ProductOfElementaryHouseholderReflectors, Qr",
    ),
}


SIZES = {"patch_size": 4, "width": 12, "depth": 1, "mlp_dim": 16, "heads": 3}
MODELS = {
    "vit": ModelConfig(
        variant=None, **SIZES, image_size=8, dropout=0.1, stochastic_depth=0.1
    ),
    "vit_gap_rematerialized": ModelConfig(
        variant=None, **SIZES, image_size=8, dropout=0.1, pooling="avg",
        class_token=False, layer_scale=0.1, position_embedding="sincos2d",
        rematerialize=True,
    ),
    "cnn": ModelConfig(
        architecture="cnn", variant=None, width=8, depth=2, image_size=8
    ),
    "hybrid": ModelConfig(
        variant="R26+Ti/32", **{**SIZES, "patch_size": None}, image_size=64
    ),
}  # fmt: skip


def make_recipe(model, **changes):
    """A recipe with all options of a step."""
    return Recipe(
        batch_size=4,
        accumulation=2,
        precision="mixed_bfloat16",
        label_smoothing=0.1,
        model=model,
        data=DataConfig("digits"),
        augmentation=AugmentationConfig(mixup=0.2),
        optimizer=OptimizerConfig(weight_decay=0.1, clip_norm=1.0, ema=0.99),
        schedule=ScheduleConfig(warmup_epochs=1),
        **changes,
    )


def found_in(recipe):
    steps = tpu_check.trainer_steps(tpu_check.make_trainer(recipe), recipe.batch_size)
    assert [step.name for step in steps] == ["train step", "test step"]
    return [
        tpu_check.function_findings(step.function, *step.arguments) for step in steps
    ]


@pytest.mark.parametrize("name", BAD)
def test_operations_unsupported_on_a_tpu_are_found(name):
    function, finding = BAD[name]
    x = tf.TensorSpec([4, 3])
    assert tpu_check.function_findings(function, x) == [finding]


def test_supported_operations_have_no_findings():
    def function(x):
        noise = tf.random.stateless_normal(x.shape, [1, 2])
        return tf.nn.softmax(tf.matmul(x, noise, transpose_b=True))

    assert tpu_check.function_findings(function, tf.TensorSpec([4, 3])) == []


def test_a_host_callback_is_found():
    def function(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((3,), "float32"), x)

    hlo = jax.jit(function).lower(jnp.ones(3)).as_text("hlo")
    (finding,) = tpu_check.findings(hlo)
    assert finding.startswith("host callback: ")


@pytest.mark.parametrize(
    ("line", "finding"),
    [
        ("%a = f32[<=4,3]{1,0} parameter(0)", "dynamic shapes"),
        ("%a = f32[2,<=4]{1,0} parameter(0)", "dynamic shapes"),
        ("%a = s32[] get-dimension-size(f32[4] %x), dimensions={0}", "dynamic shapes"),
        ("%a = f32[6] dynamic-reshape(f32[2,3] %x, s32[] %n)", "dynamic shapes"),
        ("%a = f64[3]{0} parameter(0)", "float64"),
        ("%a = c128[] parameter(0)", "float64"),
        ("%a = ((f32[3]), token[]) infeed(token[] %t)", "host transfer"),
        ("%a = token[] outfeed(f32[3] %x, token[] %t)", "host transfer"),
        ("%a = (f32[], u32[], token[]) send(f32[] %x, token[] %t)", "host transfer"),
        ('%a = f32[] custom-call(), custom_call_target="Other"', "custom call: Other"),
    ],
)  # fmt: skip
def test_each_pattern_is_found(line, finding):
    assert tpu_check.findings(f"HloModule m\n{line}\n") == [finding]


@pytest.mark.parametrize(
    "line",
    [
        "%a = pred[4]{0} compare(f32[4]{0} %x, f32[4]{0} %y), direction=LE",
        "%a = bf16[4]{0} parameter(0), metadata={op_name=\"resend(x)\"}",
        '%a = f32[4] custom-call(f32[4] %x), custom_call_target="Sharding"',
    ],
)  # fmt: skip
def test_harmless_lines_have_no_findings(line):
    assert tpu_check.findings(f"HloModule m\n{line}\n") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "vit_gap_rematerialized", "hybrid"])
def test_the_trainers_steps_have_no_findings(name):
    assert found_in(make_recipe(MODELS[name])) == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["masked_patches", "mae"])
def test_the_steps_of_self_supervision_have_no_findings(task):
    recipe = dataclasses.replace(
        make_recipe(MODELS["vit"]),
        label_smoothing=0.0,
        augmentation=AugmentationConfig(),
        self_supervision=SelfSupervisionConfig(
            task, decoder_width=12, decoder_depth=1, decoder_heads=3
        ),
    )
    assert found_in(recipe) == [[], []]


@pytest.mark.slow
def test_the_step_is_the_one_of_a_tpu_and_not_of_this_machine():
    """A CPU would take the blocks of 273 tokens one after the other."""
    sizes = SIZES | {"depth": 2}  # the last block asks for its class token alone
    model = ModelConfig(variant=None, **sizes, image_size=(68, 64))
    recipe = dataclasses.replace(make_recipe(model), accumulation=1)
    trainer = tpu_check.make_trainer(recipe)
    for step in tpu_check.trainer_steps(trainer, 2):
        program = tpu_check._compiler_ir(step.function, step.arguments)("hlo")
        assert "f32[2,3,273,273]" in program.replace("bf16", "f32")
        assert " while(" not in program


@pytest.mark.slow
def test_the_trainers_own_steps_are_checked():
    recipe = make_recipe(MODELS["cnn"])
    trainer = tpu_check.make_trainer(recipe)
    right = trainer.loss_of
    trainer.loss_of = trainer.gradients.loss_of = lambda labels, logits: tf.cast(
        tf.cast(right(labels, logits), tf.float64) * 2, tf.float32
    )
    for step in tpu_check.trainer_steps(trainer, 4):
        assert tpu_check.function_findings(step.function, *step.arguments) == [
            "float64"
        ]


def test_the_command_names_the_missing_package(monkeypatch, capsys):
    monkeypatch.setattr(tpu_check.importlib.util, "find_spec", lambda name: None)
    main(["tpu-check", "--recipe", "digits-cnn", "--model.depth", "1"])
    assert capsys.readouterr().out.splitlines() == [
        "train step: nothing found in its HLO",
        "test step: nothing found in its HLO",
        'not compiled for a TPU, as libtpu is not installed: pip install "jax[tpu]" '
        "(0.7 GB; needs no TPU)",
    ]


def test_the_command_fails_on_findings(monkeypatch, capsys):
    monkeypatch.setattr(tpu_check.importlib.util, "find_spec", lambda name: None)
    recipe = make_recipe(MODELS["cnn"])
    recipe = dataclasses.replace(recipe, precision="mixed_float16", accumulation=1)
    with pytest.raises(TrainingError, match="run: the steps cannot run on a TPU"):
        tpu_check.tpu_check(recipe, ["v5e:2x2"])
    assert "train step: float16" in capsys.readouterr().out


@pytest.mark.slow
def test_the_tpu_compiler_accepts_the_train_step(capsys):
    pytest.importorskip("libtpu")
    recipe = dataclasses.replace(make_recipe(MODELS["cnn"]), batch_size=16)
    tpu_check.tpu_check(recipe, ["v5e:2x2"])
    assert "train step: compiled for a chip of v5e:2x2" in capsys.readouterr().out
    with pytest.raises(TrainingError, match="`topology` must be .*'v5e:7x7'"):
        tpu_check.Target("v5e:7x7")


def test_a_chip_whose_figures_are_not_known_is_refused(monkeypatch):
    topologies = pytest.importorskip("jax.experimental.topologies")
    found = types.SimpleNamespace(devices=[])
    monkeypatch.setattr(topologies, "get_topology_desc", lambda *_: found)
    target = tpu_check.Target("v3:2x2")
    with pytest.raises(TrainingError, match="must be of .*'v3:2x2'"):
        _ = target.chip


def check_on_jax(*flags):
    """The lines of the command in a process of its own."""
    words = ["tpu-check", "--recipe", "digits", "--model.depth", "1", *flags]
    output = python_process.run("-m", "training", *words, KERAS_BACKEND="jax")
    return output.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["auto", "fsdp"])
def test_the_step_on_jax_has_no_findings(strategy):
    if importlib.util.find_spec("libtpu"):
        pytest.skip("libtpu is installed: the command would compile for minutes")
    lines = check_on_jax("--strategy", strategy, "--precision", "mixed_bfloat16")
    assert lines == ["train step: nothing found in its HLO", tpu_check.INSTALL]


@pytest.mark.slow
def test_the_tpu_compiler_accepts_the_step_on_jax():
    pytest.importorskip("libtpu")
    lines = check_on_jax("--strategy", "fsdp", "--topology", "v5e:2x2")
    [row] = [line for line in lines if "v5e:2x2" in line]
    assert re.search(r" 8 │ .*%", row)  # images on each chip, share of its memory


def test_a_tpu_has_one_process():
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
    strategy = types.SimpleNamespace(cluster_resolver=resolver)
    assert worker_count(strategy) == 1
    assert is_chief(strategy)


def test_tpu_requirements_match_the_package():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    wanted = (setup["options"]["install_requires"], extras["train"], extras["viz"])
    wanted = {line for text in wanted for line in text.split("\n") if line}
    lines = (ROOT / "constraints-tpu.txt").read_text("utf-8").splitlines()
    listed = {line for line in lines if line and not line.startswith(("#", "-c "))}
    replaced = {line for line in wanted if line.startswith("tensorflow>")}
    assert len(replaced) == 1
    ours = {"tensorflow-tpu==2.20.0", "libtpu==0.0.14"}
    assert listed == (wanted - replaced) | ours
