"""PyTorch's files come out bit for bit or with one clear error, and run no code."""

import json
import logging
import pickle
import pickletools
import random
import struct
import zipfile

import foreign_files
import ml_dtypes
import numpy as np
import pytest
import torch_archives as archives
from foreign_files import check_same_arrays, read_arrays
from torch_archives import number, numbers, storage, tensor, text, write_archive

import keras_vit
from keras_vit.errors import WeightsFileError
from keras_vit.weights import torch_files
from keras_vit.weights.reading import open_arrays

COUNT = np.arange(2 * 3 * 5, dtype="float32")


@pytest.fixture
def arrays():
    values = np.random.default_rng(4).normal(scale=9, size=(5, 7))
    kinds = {
        name: values.astype(getattr(ml_dtypes, name, name))
        for name in archives.STORAGES
    }
    return {
        **kinds,
        "step": np.array(13),
        "nothing": np.zeros((0, 3), "float32"),
        "long": values.astype("float32").reshape(7, 1, 5),
    }


def test_a_state_dict_of_all_types_is_read(arrays, tmp_path):
    path = archives.write_state_dict(tmp_path / "a.pth", arrays)
    check_same_arrays(read_arrays(path), arrays)
    with open_arrays(path) as file:
        assert file.format == "torch"
        for name, array in arrays.items():
            stored = file.arrays[name]
            assert (stored.shape, stored.dtype) == (array.shape, array.dtype)


def test_reading_copies_nothing(arrays, tmp_path):
    path = archives.write_state_dict(tmp_path / "a.pth", arrays)
    with open_arrays(path) as file:
        stored = file.arrays["float32"]
        assert np.shares_memory(stored.read(), stored.read())
        assert not stored.read().flags.writeable


def test_the_other_order_of_bytes_is_read(arrays, tmp_path):
    swapped = {
        name: array.view(f"u{array.itemsize}").byteswap().view(array.dtype)
        for name, array in arrays.items()
        if array.ndim
    }
    path = archives.write_state_dict(tmp_path / "a.pth", swapped, byteorder=b"big")
    check_same_arrays(read_arrays(path), {name: arrays[name] for name in swapped})


def test_a_file_of_before_the_order_was_written_is_little_endian(arrays, tmp_path):
    path = archives.write_state_dict(tmp_path / "a.pth", arrays, byteorder=None)
    check_same_arrays(read_arrays(path), arrays)


def one(path, value, data=COUNT):
    """A file with one tensor in a storage."""
    written = data.tobytes()
    return write_archive(path, archives.ordered({"a": value}), {"0": written})


FLOATS = storage("FloatStorage", "0", COUNT.size)


def test_a_view_of_a_storage_has_its_offset_and_strides(tmp_path):
    """Every second column of the last matrix, transposed."""
    path = one(tmp_path / "a.pth", tensor(FLOATS, 16, (2, 3), (2, 5)))
    expected = COUNT.reshape(2, 3, 5)[1, :, 1::2].T
    np.testing.assert_array_equal(read_arrays(path)["a"], expected)


def test_a_repeated_row_is_read(tmp_path):
    path = one(tmp_path / "a.pth", tensor(FLOATS, 5, (4, 5), (0, 1)))
    np.testing.assert_array_equal(read_arrays(path)["a"], np.tile(COUNT[5:10], (4, 1)))


def test_tensors_share_a_storage(tmp_path):
    parts = {
        "a": tensor(FLOATS, 0, (30,), (1,)),
        "b": tensor(FLOATS, 3, (2,), (1,)),
    }
    storages = {"0": COUNT.tobytes()}
    path = write_archive(tmp_path / "a.pth", archives.ordered(parts), storages)
    found = read_arrays(path)
    assert np.shares_memory(found["a"], found["b"])
    np.testing.assert_array_equal(found["b"], [3, 4])


def test_a_parameter_is_its_tensor(tmp_path):
    inside = tensor(FLOATS, 0, (30,), (1,))
    hooks = archives.named("collections", "OrderedDict") + b")R"
    name = ("torch._utils", "_rebuild_parameter")
    value = archives.called(*name, inside, archives.TRUE, hooks)
    np.testing.assert_array_equal(
        read_arrays(one(tmp_path / "a.pth", value))["a"], COUNT
    )


# Where a state dict may be.


def test_the_only_state_dict_inside_is_taken_and_it_is_said(arrays, tmp_path, caplog):
    path = archives.write_state_dict(tmp_path / "a.pth", arrays, ["teacher"])
    check_same_arrays(read_arrays(path), arrays)
    assert "read from its entry 'teacher', not 'epoch'" in caplog.text


def two_dicts():
    storages = {}
    entries = {
        name: archives.ordered(archives.tensors({"a": COUNT}, storages))
        for name in ("student", "teacher")
    }
    return archives.dictionary(entries), storages


def test_of_several_state_dicts_none_is_taken(tmp_path):
    path = write_archive(tmp_path / "a.pth", *two_dicts())
    message = r"several state dicts, 'student', 'teacher': save one of them"
    with pytest.raises(WeightsFileError, match=message):
        open_arrays(path)


def test_a_state_dict_two_levels_down_is_not_taken(arrays, tmp_path):
    path = archives.write_state_dict(tmp_path / "a.pth", arrays, ["teacher", "model"])
    with pytest.raises(WeightsFileError, match=r"'teacher', 'epoch' and no state dict"):
        open_arrays(path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (number(5), "one value and no state dict"),
        (archives.dictionary({"epoch": number(3)}), "'epoch' and no state dict"),
        (b"]", "one value and no state dict"),
        (archives.named("torch", "float32"), "one value and no state dict"),
    ],
)
def test_a_file_without_a_state_dict_is_refused(value, message, tmp_path):
    path = write_archive(tmp_path / "a.pth", value, {})
    with pytest.raises(WeightsFileError, match=message):
        open_arrays(path)


# Code.


class Code:
    """What a pickle would call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def canary(path):
    """What must not happen."""
    path.write_text("ran")


@pytest.mark.parametrize("protocol", range(6))
def test_no_code_is_run(protocol, tmp_path):
    """Of a pickle that Python would run, by each protocol."""
    target = tmp_path / "ran"
    content = pickle.dumps({"a": Code(canary, target)}, protocol)
    pickle.loads(content)
    target.unlink()
    with zipfile.ZipFile(tmp_path / "a.pth", "w") as archive:
        archive.writestr("model/data.pkl", content)
    with pytest.raises(WeightsFileError):
        open_arrays(tmp_path / "a.pth")
    assert not target.exists()


CALLS = {
    "os system": archives.called("os", "system", text("true")),
    "builtins eval": archives.called("builtins", "eval", text("1")),
    "torch load": archives.called("torch", "load", text("x")),
    "numpy.core.multiarray scalar": archives.named("numpy.core.multiarray", "scalar"),
    "argparse Namespace": archives.named("argparse", "Namespace") + b")\x81",
    "__torch__.Model Model": archives.named("__torch__.Model", "Model"),
    "torch.nn.modules.linear Linear": archives.named(
        "torch.nn.modules.linear", "Linear"
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_another_name_is_refused_by_name(name, tmp_path):
    value = archives.dictionary({"model": CALLS[name]})
    path = write_archive(tmp_path / "a.pth", value, {})
    message = rf"holds Python code, `{name.replace(' ', '.')}`, .*model\.state_dict\(\)"
    with pytest.raises(WeightsFileError, match=message) as caught:
        open_arrays(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "torch.Float8_e4m3fnStorage",
        "torch.ComplexFloatStorage",
        "torch._utils._rebuild_sparse_tensor",
    ],
)
def test_a_tensor_that_numpy_does_not_have_is_refused_by_its_kind(name, tmp_path):
    value = archives.dictionary({"a": archives.named(*name.rsplit(".", 1))})
    path = write_archive(tmp_path / "a.pth", value, {})
    with pytest.raises(WeightsFileError, match=f"a kind that is not read, `{name}`"):
        open_arrays(path)


def test_a_name_of_protocol_4_is_refused_by_name(tmp_path):
    value = text("os") + text("system") + b"\x93"
    with pytest.raises(WeightsFileError, match=r"Python code, `os\.system`"):
        open_arrays(write_archive(tmp_path / "a.pth", value, {}))


DICT = archives.named("collections", "OrderedDict")
REBUILD = archives.named("torch._utils", "_rebuild_tensor_v2")
PLACED = numbers(30), numbers(1)
STEPS = {
    "a class that is made": (DICT + b")\x81", "the step NEWOBJ"),
    "an instance of old": (b"(ios\nsystem\n", "the step INST"),
    "an extension": (b"\x82\x01", "the step EXT1"),
    "a text of protocol 0": (b"S'a'\n", "the step STRING"),
    "a dictionary of arguments": (DICT + archives.values(b"}") + b"R", "other arg"),
    "a type that is called": (archives.called("torch", "float32"), "other arguments"),
    "a number that is called": (number(1) + b")R", "a value is called"),
    "a storage without a type": (
        archives.values(text("storage"), *[text("x")] * 3, number(1)) + b"Q",
        "AttributeError",
    ),
    "a storage of a dtype": (storage("float32", "0", 30), "unknown type"),
    "a storage that lacks": (storage("FloatStorage", "9", 30), "KeyError"),
    "a storage outside": (storage("FloatStorage", "../byteorder", 30), "KeyError"),
    "a longer storage": (storage("FloatStorage", "0", 31), "has 120 bytes"),
    "a shorter storage": (storage("FloatStorage", "0", 29), "has 120 bytes"),
    "a negative storage": (storage("FloatStorage", "0", -30), "has 120 bytes"),
    "too long a tensor": (tensor(FLOATS, 0, (31,), (1,)), "extends past"),
    "an offset past the end": (tensor(FLOATS, 1, (30,), (1,)), "extends past"),
    "a stride past the end": (tensor(FLOATS, 0, (2,), (30,)), "extends past"),
    "two strides past the end": (tensor(FLOATS, 0, (5, 5), (6, 2)), "extends past"),
    "a negative offset": (tensor(FLOATS, -1, (3,), (1,)), "other numbers"),
    "a negative stride": (tensor(FLOATS, 29, (30,), (-1,)), "other numbers"),
    "negative lengths": (tensor(FLOATS, 0, (-5, -6), (1, 1)), "other numbers"),
    "a huge length": (tensor(FLOATS, 0, (2**64,), (0,)), "other numbers"),
    "a length that is true": (
        REBUILD
        + archives.values(FLOATS, number(0), archives.values(b"\x88"), numbers(1))[:-1]
        + b"NNtR",
        "other numbers",
    ),
    "fewer strides than axes": (tensor(FLOATS, 0, (5, 6), (6,)), "as many strides"),
    "more axes than NumPy has": (tensor(FLOATS, 0, (1,) * 33, (1,) * 33), "no array"),
    "a tensor without storage": (tensor(number(0), 0, (1,), (1,)), "no storage"),
    "a mark of negation": (
        tensor(FLOATS, 0, (30,), (1,), archives.dictionary({"neg": b"\x88"})),
        "negative view",
    ),
    "a key that is a tuple": (b"}" + numbers(1, 2) + number(1) + b"s", "a key is of"),
    "items of a number": (number(1) + number(2) + number(3) + b"s", "not a dict"),
    "values of a number": (number(1) + number(2) + b"a", "not a list"),
    "attributes of a number": (number(1) + b"}b", "not a dictionary"),
    "an unknown memory": (b"h\5", "KeyError"),
    "a mark that lacks": (b"t", "IndexError"),
    "nothing": (b"", "truncated"),
    "two values": (number(1) + number(2), "truncated"),
}


@pytest.mark.parametrize("name", STEPS)
def test_another_step_is_refused(name, tmp_path):
    value, message = STEPS[name]
    path = write_archive(tmp_path / "a.pth", value, {"0": COUNT.tobytes()})
    with pytest.raises(WeightsFileError, match=message) as caught:
        open_arrays(path)
    assert len(str(caught.value)) < 1000


def test_what_python_writes_needs_no_other_steps():
    """Of the values in a state dict, in the protocols of `torch.save`."""
    value = {"a": (1, 2**40, -3.5, None, True, [1, 2], (), ("x",)), "b": {}, "c": b"x"}
    for protocol in (2, 3, 4, 5):
        known = {*torch_files._STEPS, "GLOBAL"}
        content = pickle.dumps(value, protocol)
        steps = {step.name for step, _, _ in pickletools.genops(content)}
        if protocol > 2:  # bytes are a function's in 2
            assert steps <= known, steps - known


# What takes memory or time.


def nested(depth):
    """A tuple of 2**depth tuples, in four bytes each."""
    level = b"q\0h\0\x86"
    return b")" + level * depth


@pytest.mark.parametrize(
    "value",
    [
        nested(90),
        archives.dictionary({"a": nested(90)}),
        b"}" + nested(90) + number(1) + b"s",
        archives.called("collections", "OrderedDict", nested(90)),
        nested(90) + nested(90) + b"\x93",
        nested(90) + b"Q",
        tensor(FLOATS, 0, (), ())[:-1] + nested(90) + b"R",
        REBUILD + archives.values(FLOATS, nested(90), *PLACED, b"N", b"N") + b"R",
        REBUILD + archives.values(FLOATS, number(0), nested(90), *[b"N"] * 3) + b"R",
    ],
)
def test_a_tuple_of_2_to_the_90_takes_no_time(value, tmp_path):
    path = write_archive(tmp_path / "a.pth", value, {"0": COUNT.tobytes()})
    with pytest.raises(WeightsFileError):
        open_arrays(path)


def test_a_dictionary_of_many_names_is_looked_at_once(tmp_path, monkeypatch):
    names = b"".join(b"J" + struct.pack("<i", i) + b"h\x01" for i in range(1000))
    value = b"}(" + text("first") + b"}q\x01(" + text("a") + b"Nu" + names + b"u"
    looked, is_one = [], torch_files._is_state_dict
    monkeypatch.setattr(
        *(torch_files, "_is_state_dict"), lambda v: looked.append(v) or is_one(v)
    )
    with pytest.raises(WeightsFileError, match="no state dict"):
        open_arrays(write_archive(tmp_path / "a.pth", value, {}))
    assert len(looked) == 2


def test_lists_in_lists_do_not_overflow_the_stack(tmp_path):
    path = write_archive(tmp_path / "a.pth", b"]" * 100_000 + b"a" * 99_999, {})
    with pytest.raises(WeightsFileError, match="no state dict"):
        open_arrays(path)


def test_a_long_pickle_is_refused(tmp_path):
    value = b"N0" * 2**19 + b"N"
    with pytest.raises(WeightsFileError, match=r"data\.pkl has more than 1,048,576"):
        open_arrays(write_archive(tmp_path / "a.pth", value, {}))


@pytest.mark.parametrize("count", [2**26, 2**50])
def test_a_number_that_is_repeated_announces_its_array(count, tmp_path):
    path = one(tmp_path / "a.pth", tensor(FLOATS, 0, (count,), (0,)))
    with pytest.raises(WeightsFileError, match="announce arrays of"):
        open_arrays(path)


def test_a_storage_that_is_shared_often_announces_all_its_arrays(tmp_path):
    data = np.zeros(2**20, "float32")
    place = storage("FloatStorage", "0", data.size)
    parts = {str(i): tensor(place, 0, (2**20,), (1,)) for i in range(17)}
    storages = {"0": data.tobytes()}
    path = write_archive(tmp_path / "a.pth", archives.ordered(parts), storages)
    with pytest.raises(WeightsFileError, match="announce arrays of 71,303,168"):
        open_arrays(path)


def test_a_compressed_member_is_refused(arrays, tmp_path):
    path = archives.write_state_dict(
        tmp_path / "a.pth", arrays, method=zipfile.ZIP_DEFLATED
    )
    with pytest.raises(WeightsFileError, match=r"data\.pkl' is compressed, as PyTorch"):
        open_arrays(path)


@pytest.mark.parametrize("order", [b"middle", b"x" * 99])
def test_an_unknown_order_of_bytes_is_refused(order, arrays, tmp_path):
    path = archives.write_state_dict(tmp_path / "a.pth", arrays, byteorder=order)
    with pytest.raises(WeightsFileError, match="byteorder"):
        open_arrays(path)


def test_two_pickles_are_refused(tmp_path):
    path = write_archive(tmp_path / "a.pth", b"}", {})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/data.pkl", b"")
    with pytest.raises(WeightsFileError, match="2 members are called data.pkl"):
        open_arrays(path)


def test_a_storage_past_the_end_of_the_file_is_refused(tmp_path):
    path = one(tmp_path / "a.pth", tensor(FLOATS, 0, (30,), (1,)))
    data = bytearray(path.read_bytes())
    sizes = data.find(b"PK\1\2", data.find(b"PK\1\2", data.find(b"PK\1\2") + 1) + 1)
    struct.pack_into("<II", data, sizes + 20, 4 * 30_000, 4 * 30_000)
    path.write_bytes(data)
    with pytest.raises(WeightsFileError):
        open_arrays(path)


def test_a_truncated_file_is_an_error_wherever_it_ends(arrays, tmp_path):
    path = archives.write_state_dict(tmp_path / "a.pth", arrays)
    data = path.read_bytes()
    for length in range(0, len(data), 1 + len(data) // 300):
        path.write_bytes(data[:length])
        with pytest.raises(WeightsFileError):
            read_arrays(path)


def test_damaged_bytes_give_an_error_or_whole_arrays(arrays, tmp_path):
    path = archives.write_state_dict(tmp_path / "a.pth", arrays)
    data, dice = path.read_bytes(), random.Random(8)
    for _ in range(600):
        damaged = bytearray(data)
        damaged[dice.randrange(len(data))] = dice.randrange(256)
        path.write_bytes(damaged)
        try:
            found = read_arrays(path)
        except WeightsFileError:
            continue
        check_same_arrays(found, arrays)


def test_damaged_steps_give_an_error_or_arrays(arrays, tmp_path):
    """A pickle with a checksum, as its author means it."""
    storages, dice = {}, random.Random(8)
    value = archives.ordered(archives.tensors(arrays, storages))
    for _ in range(600):
        damaged = bytearray(value)
        for _ in range(dice.randrange(1, 4)):
            damaged[dice.randrange(len(value))] = dice.randrange(256)
        path = write_archive(tmp_path / "a.pth", bytes(damaged), storages)
        try:
            read_arrays(path)
        except WeightsFileError:
            continue


# What is not an archive, and folders.


def test_a_file_of_before_1_6_says_what_to_do(tmp_path):
    number = 0x1950A86A20F9469CFC6C
    (tmp_path / "a.pth").write_bytes(pickle.dumps(number, 2) + b"more")
    message = r"PyTorch before 1\.6.*torch\.save\(torch\.load\(path, weights_only=True"
    with pytest.raises(WeightsFileError, match=message):
        open_arrays(tmp_path / "a.pth")


def test_a_bare_pickle_says_what_to_do(tmp_path):
    (tmp_path / "a.pth").write_bytes(pickle.dumps({}, 2))
    with pytest.raises(WeightsFileError, match=r"torch\.save\(model\.state_dict\(\)"):
        open_arrays(tmp_path / "a.pth")


@pytest.mark.parametrize("write", [foreign_files.hugging_face, foreign_files.timm])
def test_another_projects_folder_opens_as_with_safetensors(write, tiny_vit, tmp_path):
    source = tiny_vit(gelu="exact")
    path = write(source, tmp_path)
    arrays = {name: np.array(array) for name, array in read_arrays(path).items()}
    path.unlink()
    archives.write_state_dict(tmp_path / "pytorch_model.bin", arrays)
    foreign_files.check_same_weights(keras_vit.open_model(tmp_path), source)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "open_clip_pytorch_model.bin", "vitb14.pth", "a.pt"]
)
def test_a_folder_with_one_file_of_pytorch_is_opened(name, arrays, tmp_path):
    archives.write_state_dict(tmp_path / name, arrays)
    (tmp_path / "folder.pth").mkdir()
    config = "open_clip_config" if "clip" in name else "config"
    (tmp_path / f"{config}.json").write_text('{"hidden_size": 7}')
    with open_arrays(tmp_path) as file:
        assert file.arrays.keys() == arrays.keys()
        assert file.config == {"hidden_size": 7}


def test_safetensors_come_first(arrays, tmp_path, caplog):
    library = pytest.importorskip("safetensors.numpy")
    archives.write_state_dict(tmp_path / "pytorch_model.bin", arrays)
    library.save_file({"b": COUNT}, tmp_path / "model.safetensors")
    with caplog.at_level(logging.WARNING), open_arrays(tmp_path) as file:
        assert list(file.arrays) == ["b"]
    assert "read from model.safetensors, not pytorch_model.bin" in caplog.text


def test_of_several_files_none_is_chosen(arrays, tmp_path):
    for name in ("b.pth", "a.pth"):
        archives.write_state_dict(tmp_path / name, arrays)
    message = r"several files of PyTorch, a\.pth, b\.pth: choose one"
    with pytest.raises(WeightsFileError, match=message):
        open_arrays(tmp_path)


def test_shards_are_opened_by_their_index_or_their_folder(arrays, tmp_path):
    parts = {}
    for i, name in enumerate(arrays):
        parts[name] = f"pytorch_model-0000{i % 2 + 1}-of-00002.bin"
    for shard in set(parts.values()):
        inside = {n: array for n, array in arrays.items() if parts[n] == shard}
        archives.write_state_dict(tmp_path / shard, inside)
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": parts}))
    check_same_arrays(read_arrays(index), arrays)
    check_same_arrays(read_arrays(tmp_path), arrays)


# PyTorch itself.


@pytest.mark.parity
def test_what_pytorch_writes_is_read(tmp_path):
    torch = pytest.importorskip("torch")
    base = torch.arange(60.0).reshape(3, 4, 5)
    state = {
        "whole": base,
        "transposed": base.transpose(0, 2),
        "part": base[1:, ::2, 3],
        "expanded": base[0, :1].expand(6, 5),
        "flipped": base.flip(0),
        "bfloat16": torch.randn(5, 7).bfloat16(),
        "half": torch.randn(5, 7).half(),
        "double": torch.randn(3, dtype=torch.float64),
        "long": torch.tensor(2**40),
        "boolean": torch.tensor([True, False]),
        "bytes": torch.tensor([1, 255], dtype=torch.uint8),
        "nothing": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
    }
    for protocol in (2, 3, 4, 5):
        path = tmp_path / f"{protocol}.pth"
        torch.save(state, path, pickle_protocol=protocol)
        found = read_arrays(path)
        assert found.keys() == state.keys()
        for name, value in state.items():
            value = value.detach()
            bits = value.view(torch.int16) if name == "bfloat16" else value
            ours = found[name].view("i2") if name == "bfloat16" else found[name]
            np.testing.assert_array_equal(ours, bits.numpy(), err_msg=name)
            assert str(value.dtype) == f"torch.{found[name].dtype}"


@pytest.mark.parity
def test_pytorch_reads_what_the_tests_write(arrays, tmp_path):
    """So that the files of the other tests are such as PyTorch's own."""
    torch = pytest.importorskip("torch")
    path = archives.write_state_dict(tmp_path / "a.pth", arrays, ["teacher"])
    found = torch.load(path, weights_only=True)["teacher"]
    for name, array in arrays.items():
        value = found[name].double() if name == "bfloat16" else found[name]
        np.testing.assert_array_equal(value.numpy(), array.astype(value.numpy().dtype))
    place = tensor(FLOATS, 16, (2, 3), (2, 5))
    found = torch.load(one(tmp_path / "b.pth", place), weights_only=True)
    np.testing.assert_array_equal(found["a"], read_arrays(tmp_path / "b.pth")["a"])


@pytest.mark.parity
def test_a_whole_module_and_a_script_are_refused_by_name(tmp_path):
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(3, 5)
    torch.save(module, tmp_path / "a.pth")
    message = r"Python code, `torch\.nn\.modules\.linear\.Linear`.*state_dict\(\)"
    with pytest.raises(WeightsFileError, match=message):
        open_arrays(tmp_path / "a.pth")
    torch.save(module.state_dict(), tmp_path / "b.pth")
    assert read_arrays(tmp_path / "b.pth").keys() == {"weight", "bias"}
    torch.save(
        module.state_dict(), tmp_path / "c.pth", _use_new_zipfile_serialization=False
    )
    with pytest.raises(WeightsFileError, match=r"before 1\.6"):
        open_arrays(tmp_path / "c.pth")
