"""The README.md of a model's repository on Hugging Face: metadata, and text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keras_vit.base import ImageModel

from ..engine.run_folder import Report
from ..evaluation.metrics import METRICS
from ..recipe import Recipe
from ..reporting.report import PICTURES

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

MODEL = "model.keras"
PURPOSE = (
    "Classification of images like those that it was trained on, into the classes "
    "above: every image gets one of them, whatever it shows. The metrics hold for "
    "the test images alone. Check the model on images of your own, for each group "
    "of people or things that it will be used for, before it decides anything."
)


@dataclass(frozen=True)
class ModelCard:
    """What a repository's README.md says."""

    name: str  # owner/name
    model: ImageModel
    recipe: Recipe
    report: Report
    library: str | None  # `"timm"` or `"hugging_face"`, which can load it too
    license_id: str | None
    pictures: Sequence[str]  # names of files beside it
    notes: Sequence[str]  # what the other library's files cannot state

    def readme(self) -> str:
        """The contents of README.md."""
        return f"---\n{self._metadata().to_yaml()}\n---\n\n{self._text()}"

    def _metadata(self) -> "ModelCardData":
        from huggingface_hub import EvalResult, ModelCardData

        source = self.recipe.data.source
        results = [
            EvalResult(
                task_type="image-classification",
                dataset_type=source.partition(":")[0],
                dataset_name=source,
                dataset_split="test",
                metric_type=hub_name,
                metric_name=title,
                metric_value=value,
            )
            for title, hub_name, value in self._scores()
        ]
        others = {"timm": ["timm"], "hugging_face": ["transformers"], None: []}
        tags = ["keras-vit", "vision-transformer", "image-classification"]
        return ModelCardData(
            license=self.license_id,
            library_name="keras",
            pipeline_tag="image-classification",
            tags=[*tags, *others[self.library]],
            metrics=sorted({result.metric_type for result in results}),
            model_name=self.name.partition("/")[2],
            eval_results=results,
        )

    def _text(self) -> str:
        kind, source = type(self.model).__name__, self.recipe.data.source
        parts = [
            f"# {self.name.partition('/')[2]}",
            self.recipe.description,
            f"A `keras_vit.{kind}` with {self.model.count_params():,} parameters, "
            "trained by [keras-vit](https://pypi.org/project/keras-vit-serving/) on "
            f"`{source}`.",
            self._inputs_and_outputs(),
            "## Metrics",
            f"On {self.report['images']} test images of `{source}`:",
            self._metrics(),
            *(f"![{PICTURES[picture]}]({picture})" for picture in self.pictures),
            "## How to load it",
            _loading(self.name, kind, self.library),
            *(f"{note}." for note in self.notes),
            "## Intended use and limits",
            PURPOSE,
            "## License",
            f"`{self.license_id}`"
            if self.license_id
            else "The author of the model states none.",
            "## Recipe",
            f"```yaml\n{self.recipe.to_yaml().strip()}\n```",
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _inputs_and_outputs(self) -> str:
        model = self.model
        height, width = model.image_size
        class_names = model.class_names or []
        names = ", ".join(class_names[:20])
        more = ", ..." if len(class_names) > 20 else ""
        return (
            f"**Input**: images [B, {height}, {width}, {model.channels}], "
            f"{model.input_pixels}; the model normalizes them itself.\n\n"
            f"**Output**: logits of {model.classes} classes: {names}{more}."
        )

    def _scores(self) -> list[tuple[str, str, float]]:
        """Titles, names on the Hub and values of the metrics."""
        return [
            (metric.title, metric.hub_name, self.report[name])
            for name, metric in METRICS.items()
            if metric.hub_name is not None and name in self.report
        ]

    def _metrics(self) -> str:
        """The table of the metrics."""
        rows = [f"| {title} | {value:.4f} |" for title, _, value in self._scores()]
        return "\n".join(["| metric | value |", "|---|---|", *rows])


def _loading(name: str, kind: str, library: str | None) -> str:
    if kind == "ImageClassifier":
        lines = [
            "import keras, keras_vit, huggingface_hub",
            "",
            f'path = huggingface_hub.hf_hub_download("{name}", "{MODEL}")',
            "model = keras.models.load_model(path)",
        ]
    else:
        lines = [
            "import keras_vit",
            "",
            f'model = keras_vit.{kind}.from_preset("hf://{name}")',
        ]
    code = "\n".join(lines)
    text = f"```python\n{code}\nscores = model.predict(images)  # 0 to 255\n```"
    other = {
        "timm": f'timm.create_model("hf-hub:{name}", pretrained=True)',
        "hugging_face": f'ViTForImageClassification.from_pretrained("{name}")',
    }
    if library is None:
        return text
    package = {"timm": "timm", "hugging_face": "transformers"}[library]
    return (
        f"{text}\n\nWith {package}, which reads normalized pixels as its configuration "
        f"states:\n\n```python\n{other[library]}\n```"
    )
