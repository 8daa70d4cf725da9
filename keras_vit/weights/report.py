"""What loading a checkpoint did, and the error where it does not fit."""

import dataclasses

from keras_vit.weights.checkpoint import FAMILIES


class CheckpointError(ValueError):
    """A checkpoint does not fit a model; the model is as it was."""


@dataclasses.dataclass
class LoadReport:
    """What became of every array of a checkpoint and of every weight of a model.

    Args:
        path: The file or folder.
        family: Key of `keras_vit.weights.FAMILIES`.
        used: Weights that come from an array: our path -> the array's name.
        resampled: Of these, to another grid or patch size: path -> from what to what.
        adapted: Of these, changed otherwise: path -> how.
        dropped: Names of arrays that the head policy leaves out.
        unused: Names of other arrays of the model that were left out.
        outside: Names of arrays beside the model, such as an optimizer's.
        missing: Paths of weights that no array was for, and which stayed.
        notes: What else a reader should know.
    """

    path: str
    family: str
    used: dict[str, str] = dataclasses.field(default_factory=dict)
    resampled: dict[str, str] = dataclasses.field(default_factory=dict)
    adapted: dict[str, str] = dataclasses.field(default_factory=dict)
    dropped: list[str] = dataclasses.field(default_factory=list)
    unused: list[str] = dataclasses.field(default_factory=list)
    outside: list[str] = dataclasses.field(default_factory=list)
    missing: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"{FAMILIES[self.family].title}: {self.path}",
            f"  {len(self.used)} weights loaded",
        ]
        for title, changes in (
            ("resampled", self.resampled),
            ("adapted", self.adapted),
        ):
            for how in dict.fromkeys(changes.values()):
                paths = [path for path in changes if changes[path] == how]
                lines.append(f"  {title} {shorten(paths)}: {how}")
        for title, names in (
            ("dropped", self.dropped),
            ("not used", self.unused),
            ("beside the model", self.outside),
            ("not in the file", self.missing),
        ):
            if names:
                lines.append(f"  {title}: {shorten(names)}")
        return "\n".join(lines + [f"  {note}" for note in self.notes])


def shorten(names: list[str]) -> str:
    """The first names of a list, and how many there are more."""
    more = f" and {len(names) - 4} more" if len(names) > 5 else ""
    return ", ".join(names[:4] if more else names) + more
