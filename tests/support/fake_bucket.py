"""A bucket without a network: `gs://` served by TensorFlow's own files in memory.

Every call goes through `tf.io.gfile` as with a real bucket, to `ram://`.
"""

import tensorflow as tf
from etils.epath import backend, gpath

READ_OR_WRITE = {
    *("GFile", "copy", "exists", "glob", "isdir", "listdir", "makedirs", "mkdir"),
    *("remove", "rmtree", "stat", "walk"),
}


class Gfile:
    """`tf.io.gfile` without renaming, and with a network that may fail.

    Attributes:
        break_copy_after: Bytes after which the next copy into the bucket breaks off.
        unreachable: Calls for paths with this text fail; None for no such failure.
    """

    def __init__(self):
        self.break_copy_after = None
        self.unreachable = None

    def __getattr__(self, name):
        if name not in READ_OR_WRITE:
            raise AssertionError(f"{name} of a file in a bucket")
        return lambda *args, **kwargs: self._call(name, *args, **kwargs)

    def _call(self, name, *args, **kwargs):
        if self.unreachable is not None and self.unreachable in str(args):
            raise tf.errors.UnavailableError(None, None, "the network\nis down")
        args = [_in_memory(arg) for arg in args]
        if name == "copy":
            _forget(args[1], kwargs["overwrite"])
            if self.break_copy_after is not None:
                return self._break_copy(*args)
        return getattr(tf.io.gfile, name)(*args, **kwargs)

    def _break_copy(self, source, target):
        with open(source, "rb") as file, tf.io.gfile.GFile(target, "wb") as copy:
            copy.write(file.read(self.break_copy_after))
        raise tf.errors.UnavailableError(None, None, "the network broke off")


def _in_memory(argument):
    return str(argument).replace("gs://", "ram://")


def _forget(path, overwrite):
    # The files in memory append to an old file; a bucket's objects are replaced.
    if path.startswith("ram://") and tf.io.gfile.exists(path):
        assert overwrite, f"{path} exists"
        tf.io.gfile.remove(path)


class Bucket(backend._TfBackend):
    gfile = None


def names(folder):
    """The names of a folder's files and folders, sorted."""
    return sorted(path.name for path in folder.iterdir())


def install(monkeypatch):
    """Serves `gs://bucket` until the test ends; returns the `Gfile` to disturb it."""
    gfile = Gfile()
    bucket = Bucket()
    bucket.gfile = gfile
    monkeypatch.setattr(backend, "tf_backend", bucket)
    monkeypatch.setattr(gpath, "_GCS_BACKENDS", {bucket})
    tf.io.gfile.makedirs("ram://bucket")
    for name in tf.io.gfile.listdir("ram://bucket"):
        tf.io.gfile.rmtree(f"ram://bucket/{name}")
    return gfile
