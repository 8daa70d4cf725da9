"""Files of arrays come out bit for bit, or with one clear error."""

import json
import random
import struct
import zipfile

import h5py
import ml_dtypes
import numpy as np
import pytest
from foreign_files import check_same_arrays, read_arrays

from keras_vit.errors import WeightsFileError
from keras_vit.weights.reading import open_arrays

pytestmark = pytest.mark.backend

DTYPES = {"float32": "F32", "float64": "F64", "bfloat16": "BF16", "int64": "I64"}
SUFFIXES = {
    "npz": ".npz",
    "compressed": ".npz",
    "safetensors": ".safetensors",
    "hdf5": ".weights.h5",
}


@pytest.fixture
def arrays():
    random = np.random.default_rng(4)
    return {
        "block/kernel": random.normal(size=(5, 7)).astype("float32"),
        "block/bias": random.normal(size=7).astype("float32"),
        "step": np.int64(13),
        "half": random.normal(size=(3, 2)).astype(ml_dtypes.bfloat16),
        "nothing": np.zeros((0, 3), "float32"),
        "columns": np.asfortranarray(random.normal(size=(3, 4))),
    }


def safetensors_bytes(arrays, **changes):
    """The format by its specification; `changes` go into the header."""
    header, data = {}, b""
    for name, array in arrays.items():
        header[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    text = json.dumps({**header, "__metadata__": {"format": "pt"}, **changes}).encode()
    return struct.pack("<Q", len(text)) + text + data


def write(path, arrays, kind):
    if kind == "npz":
        np.savez(path, **arrays)
    elif kind == "compressed":
        np.savez_compressed(path, **arrays)
    elif kind == "safetensors":
        path.write_bytes(safetensors_bytes(arrays))
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    return path


@pytest.fixture(params=SUFFIXES)
def kind(request):
    return request.param


@pytest.fixture
def path(kind, arrays, tmp_path):
    return write(tmp_path / f"weights{SUFFIXES[kind]}", arrays, kind)


def test_arrays_survive_a_round_trip(path, arrays):
    check_same_arrays(read_arrays(path), arrays)


def test_shapes_and_types_are_known_before_reading(path, kind, arrays):
    with open_arrays(path) as file:
        assert file.format == {"compressed": "npz"}.get(kind, kind)
        for name, array in arrays.items():
            stored = file.arrays[name]
            assert (stored.shape, stored.dtype) == (array.shape, array.dtype)


@pytest.mark.parametrize("kind", ["npz", "safetensors"], indirect=True)
def test_reading_copies_nothing(path):
    with open_arrays(path) as file:
        stored = file.arrays["block/kernel"]
        assert np.shares_memory(stored.read(), stored.read())
        assert not stored.read().flags.writeable


def test_a_truncated_file_is_an_error_wherever_it_ends(path):
    data = path.read_bytes()
    for length in range(0, len(data), 1 + len(data) // 300):
        path.write_bytes(data[:length])
        with pytest.raises(WeightsFileError):
            read_arrays(path)


def test_damaged_bytes_give_an_error_or_whole_arrays(path, kind, arrays):
    data, dice = path.read_bytes(), random.Random(8)
    for _ in range(400):
        damaged = bytearray(data)
        damaged[dice.randrange(len(data))] = dice.randrange(256)
        path.write_bytes(damaged)
        try:
            found = read_arrays(path)
        except WeightsFileError:
            continue
        if kind in ("npz", "compressed"):  # the formats with checksums
            check_same_arrays(found, arrays)


@pytest.mark.parametrize("kind", ["npz", "compressed"])
def test_a_flipped_bit_is_found_by_the_checksum(kind, tmp_path):
    # Larger than what opening reads: there zipfile itself compares the checksum.
    large = np.random.default_rng(2).integers(0, 256, (101, 103), "uint8")
    path = write(tmp_path / "weights.npz", {"large": large}, kind)
    data = bytearray(path.read_bytes())
    data[9001] ^= 1
    path.write_bytes(data)
    with open_arrays(path) as file, pytest.raises(WeightsFileError, match="large"):
        file.arrays["large"].verify()


def test_an_npz_with_a_damaged_directory_is_an_error(tmp_path, arrays):
    path = write(tmp_path / "weights.npz", arrays, "npz")
    data = bytearray(path.read_bytes())
    first = data.find(b"PK\1\2")
    # The first entry's comment swallows all others: zipfile does not notice.
    others = data.find(b"PK\5\6") - data.find(b"PK\1\2", first + 4)
    struct.pack_into("<H", data, first + 32, others)
    path.write_bytes(data)
    with pytest.raises(WeightsFileError, match="1 arrays instead of 6"):
        open_arrays(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("surplus", [-4, 4])
def test_an_npz_with_a_wrong_header_is_an_error(compression, surplus, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(7, "float32"))
    content = (tmp_path / "a.npy").read_bytes() + bytes(4)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", compression) as archive:
        archive.writestr("a.npy", content[: len(content) - 4 + surplus])
    with pytest.raises(WeightsFileError, match=r"a\.npy is too short or too long"):
        open_arrays(tmp_path / "a.npz")


def test_an_npz_whose_array_exceeds_the_file_is_an_error(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(700, "float32"))
    content = (tmp_path / "a.npy").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", content[:200])
    data = bytearray((tmp_path / "a.npz").read_bytes())
    sizes = data.find(b"PK\1\2") + 20
    struct.pack_into("<II", data, sizes, len(content), len(content))
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(WeightsFileError, match="past the end|Overlapped"):
        open_arrays(tmp_path / "a.npz")


CONTENT = {
    "empty": (b"", "is empty"),
    "page": (b"\n<!DOCTYPE html><html>Sign in</html>", "web page"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "model.bin": (b"\x80\x02}q\x00.", "pickle.*safetensors"),
    "old.ckpt": (b"(dp0\n.", "pickle.*safetensors"),
    "text.npz": (b"some words", "no known format"),
    "text.bin": (b"some words", "no known format"),
    "array.npy": (b"\x93NUMPY\x01\x00", "no known format"),
    "short.npz": (b"PK\x03\x04", "truncated or corrupt"),
    "short.h5": (b"\x89HDF\r\n\x1a\n", "truncated or corrupt"),
    "list.json": (b"[1, 2]", "truncated or corrupt"),
    "other.json": (b'{"a": 1}', "weight_map"),
    "none.safetensors": (safetensors_bytes({}), "holds no arrays"),
}


@pytest.mark.parametrize("name", CONTENT)
def test_a_file_without_arrays_is_reported(name, tmp_path):
    content, message = CONTENT[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(WeightsFileError, match=f"(?s){name}.*{message}"):
        open_arrays(path)


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ("model.weights.h5", "keras.models.load_model"),
        ("notes.txt", "not an .npz"),
    ],
)
def test_another_zip_archive_is_refused(member, message, tmp_path):
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr(member, b"content")
    with pytest.raises(WeightsFileError, match=message):
        open_arrays(tmp_path / "other.zip")


def test_an_array_of_objects_is_refused_before_anything_is_read(tmp_path):
    np.savez(tmp_path / "objects.npz", names=np.array([{}, None], dtype=object))
    with pytest.raises(WeightsFileError, match=r"objects, 'names\.npy'"):
        open_arrays(tmp_path / "objects.npz")


def test_a_missing_checkpoint_is_reported(tmp_path):
    with pytest.raises(WeightsFileError, match="does not exist"):
        open_arrays(tmp_path / "nowhere.npz")


def test_a_folder_is_opened_by_the_names_of_the_hubs(tmp_path, arrays):
    write(tmp_path / "model.safetensors", arrays, "safetensors")
    (tmp_path / "config.json").write_text('{"hidden_size": 7}')
    with open_arrays(tmp_path) as file:
        assert file.config == {"hidden_size": 7}
        assert file.metadata == {"format": "pt"}
        assert file.arrays.keys() == arrays.keys()


def test_a_preset_of_keras_hub_is_its_two_files(tmp_path):
    write(tmp_path / "model.weights.h5", {"layers/a": np.zeros(3)}, "hdf5")
    write(tmp_path / "task.weights.h5", {"layers/b": np.ones(5)}, "hdf5")
    (tmp_path / "task.json").write_text('{"config": {}}')
    with open_arrays(tmp_path) as file:
        assert {n: a.shape for n, a in file.arrays.items()} == {
            "layers/a": (3,),
            "layers/b": (5,),
        }
        assert file.beside("task.json") == {"config": {}}
        assert file.config == {}


def test_an_error_for_a_folder_without_weights_lists_the_expected_files(tmp_path):
    with pytest.raises(WeightsFileError, match=r"model\.safetensors,.*model\.weights"):
        open_arrays(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(WeightsFileError, match=r"pytorch_model\.bin.*pickle"):
        open_arrays(tmp_path)


@pytest.mark.parametrize("text", ["{", '{"hidden_size": ', "[]", "null", '"a"'])
def test_a_broken_config_is_an_error(text, tmp_path, arrays):
    path = write(tmp_path / "model.safetensors", arrays, "safetensors")
    (tmp_path / "config.json").write_text(text)
    with open_arrays(path) as file, pytest.raises(WeightsFileError, match=r"config\.j"):
        _ = file.config


@pytest.fixture
def shards(tmp_path, arrays):
    """Two shards and their index."""
    names = ("part-1.safetensors", "part-2.safetensors")
    shard_of = {name: names[i % 2] for i, name in enumerate(arrays)}
    for shard in names:
        part = {n: a for n, a in arrays.items() if shard_of[n] == shard}
        write(tmp_path / shard, part, "safetensors")

    def write_index(**changes):
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {**shard_of, **changes}}))
        return index

    return write_index


def test_shards_are_opened_by_their_index_or_their_folder(shards, arrays):
    index = shards()
    check_same_arrays(read_arrays(index), arrays)
    check_same_arrays(read_arrays(index.parent), arrays)


@pytest.mark.parametrize(
    ("number", "held", "message"),
    [
        (3, None, "shard .* is missing"),
        (1, None, "lack more"),
        (3, "step", "repeats step"),
    ],
)
def test_shards_that_do_not_hold_what_the_index_says(shards, number, held, message):
    index = shards(more=f"part-{number}.safetensors")
    if held:
        path = index.parent / f"part-{number}.safetensors"
        path.write_bytes(safetensors_bytes({held: np.zeros(3)}))
    with pytest.raises(WeightsFileError, match=message):
        open_arrays(index)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F8_E4M3", "shape": [3], "data_offsets": [0, 12]}, "F8_E4M3"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 12]}, "data offsets"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}, "data offsets"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "instead of"),
        ({"dtype": "F32", "shape": [-3, -1], "data_offsets": [0, 12]}, "the shape"),
        ({"dtype": "F32", "shape": [3.0], "data_offsets": [0, 12]}, "the shape"),
        ({"dtype": "F32", "shape": [3]}, "data_offsets"),
    ],
)
def test_a_wrong_safetensors_header_is_an_error(entry, message, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"a": np.zeros(3, "float32")}, a=entry))
    with pytest.raises(WeightsFileError, match=message):
        open_arrays(path)


def test_no_header_length_is_mistaken_for_a_web_page(tmp_path, arrays):
    rest = len(safetensors_bytes({}, padding="")) - 8
    padding = "." * (int.from_bytes(b" <", "little") - rest)
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({}, padding=padding))
    assert path.read_bytes()[:2] == b" <"
    with pytest.raises(WeightsFileError, match="truncated or corrupt"):
        open_arrays(path)


def test_files_of_the_safetensors_library_are_read(tmp_path, arrays):
    library = pytest.importorskip("safetensors.numpy")
    arrays = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
    library.save_file(arrays, tmp_path / "a.safetensors", metadata={"format": "np"})
    arrays["step"] = arrays["step"].reshape(1)  # ascontiguousarray made it a vector
    check_same_arrays(read_arrays(tmp_path / "a.safetensors"), arrays)


def test_an_external_hdf5_dataset_is_refused(tmp_path):
    (tmp_path / "raw").write_bytes(bytes(12))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", (3,), "f4", external=[(tmp_path / "raw", 0, 12)])
    with pytest.raises(WeightsFileError, match="'/a' from another file"):
        open_arrays(tmp_path / "a.h5")


def test_keras_bfloat16_weights_are_bfloat16(tmp_path):
    import keras

    dense = keras.layers.Dense(3, kernel_initializer="ones", dtype="bfloat16")
    model = keras.Sequential([keras.Input((5,)), dense])
    model.save_weights(tmp_path / "a.weights.h5")
    kernel = read_arrays(tmp_path / "a.weights.h5")["layers/dense/vars/0"]
    np.testing.assert_array_equal(kernel, np.ones((5, 3), ml_dtypes.bfloat16))
