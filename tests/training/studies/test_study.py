"""A study's file: its rows, runs and parts, what is wrong in it, and those we have."""

import functools
import textwrap
from pathlib import Path

import pytest
from training_commands import main

from training.errors import RecipeError
from training.recipe import DataConfig
from training.recipes import named_recipe
from training.studies.study import Run, part_of
from training.studies.study_command import checked_study
from training.studies.study_files import load_study, study_files, summary

FILE = """
title: Two axes
recipe: digits
settings: {epochs: 7, model: {dropout: 0.1}}
axes:
  width:
    narrow: {model: {width: 24}}
    wide: {model: {width: 48, dropout: 0.2}, high: {seed: 5}}
  rate:
    low: {optimizer: {learning_rate: 0.001}}
    high:
      optimizer: {learning_rate: 0.01}
      model: {dropout: 0.3}
      group: fast
      images: 11
      classes: 3
seeds: [3, 4]
columns: [accuracy]
small: {seeds: [0], settings: {epochs: 2}}
"""
CHAIN = """
title: A chain
recipe: digits
axes:
  task:
    first: {}
    second: {model: {weights: "@first"}}
    third: {model: {weights: "@second"}}
    other: {}
seeds: [0, 1]
columns: [accuracy]
"""


@pytest.fixture
def write(tmp_path):
    """A function that writes a study and returns its path."""

    def write(text, name="mine.yaml"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def test_rows_are_all_combinations_and_later_axes_win(write):
    study = load_study(write(FILE))
    base = named_recipe("digits")
    assert [row.name for row in study.rows] == [
        *("narrow-low", "narrow-high", "wide-low", "wide-high")
    ]
    values = [
        (r.recipe.model.width, r.recipe.model.dropout, r.recipe.optimizer.learning_rate)
        for r in study.rows
    ]
    assert values == [
        (24, 0.1, 0.001),
        (24, 0.3, 0.01),
        (48, 0.2, 0.001),
        (48, 0.3, 0.01),
    ]
    assert {row.recipe.epochs for row in study.rows} == {7}
    assert {row.recipe.batch_size for row in study.rows} == {base.batch_size}
    assert [row.recipe.seed for row in study.rows] == [0, 0, 0, 5]  # wide with high
    last = study.rows[-1]
    assert last.labels == {"width": "wide", "rate": "high", "group": "fast"}
    assert (last.images, last.classes) == (11, 3)
    assert study.rows[0].images is None
    assert [run.name for run in study.runs()][3:5] == [
        "wide-high-seed3",
        "narrow-low-seed4",
    ]


def test_the_small_form_replaces_whole_keys(write):
    study = load_study(write(FILE), small=True)
    assert study.seeds == (0,)
    assert {row.recipe.epochs for row in study.rows} == {2}
    assert study.rows[0].recipe.model.dropout == 0.0
    found = summary(Path(write(FILE)))
    assert (found.runs, found.small_runs) == (8, 4)


def test_flags_apply_to_every_row_with_their_types(write):
    flags = {"optimizer.weight_decay": "7e-5", "epochs": "9", "model.dropout": "0.4"}
    flags |= {"model.variant": "null", "data.train": "train[:50%]"}
    for row in load_study(write(FILE), flags=flags).rows:
        assert row.recipe.optimizer.weight_decay == 7e-5
        assert (row.recipe.epochs, row.recipe.model.dropout) == (9, 0.4)
        assert row.recipe.data == DataConfig("digits", "train[:50%]", validation=0.0)


def test_a_typed_seed_replaces_the_studys(write):
    study = load_study(write(FILE), flags={"seed": "9"})
    assert {run.seed for run in study.runs()} == {9}
    assert len(study.runs()) == 4


def test_names_of_axes_in_texts_are_filled_in_and_other_braces_kept(write):
    text = FILE.replace("model: {dropout: 0.1}", "optimizer: {frozen: ['b{2}.{rate}']}")
    row = load_study(write(text)).rows[1]
    assert row.recipe.optimizer.frozen == ("b{2}.high",)


def test_a_run_has_its_seed_and_begins_with_the_same_seed_of_its_row(write, tmp_path):
    study = load_study(write(CHAIN))
    second = study.rows[1]
    recipe = Run(second, 1).prepared(second.recipe, tmp_path)
    assert recipe.seed == 1
    assert recipe.model.weights == str(tmp_path / "first-seed1" / "best.keras")
    assert Run(study.rows[0], 1).prepared(study.rows[0].recipe, tmp_path).model == (
        named_recipe("digits").model
    )


def test_parts_are_disjoint_and_keep_chains_together(write):
    study = load_study(write(CHAIN))
    parts = [[r.name for r in part_of(study, f"{n}/3")] for n in (1, 2, 3)]
    names = [run.name for run in study.runs()]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert parts[0] == ["first-seed0", "second-seed0", "third-seed0", "other-seed1"]
    assert [run.name for run in part_of(study, None)] == names


@pytest.mark.parametrize("part", ["0/4", "5/4", "4", "1/0", "a/b", "1/2/3", "-1/4"])
def test_a_wrong_part_is_an_error(write, part):
    with pytest.raises(RecipeError, match="`--part` must be N/M") as error:
        part_of(load_study(write(CHAIN)), part)
    assert repr(part) in str(error.value)


def test_chosen_rows_bring_those_that_they_begin_with(write):
    study = load_study(write(CHAIN), rows=["third"])
    assert [row.name for row in study.rows] == ["first", "second", "third"]
    study = load_study(write(FILE), rows=["wide", "narrow-low"])
    assert [row.name for row in study.rows] == ["narrow-low", "wide-low", "wide-high"]


def test_candidates_differ_in_their_trials_images(write):
    text = """
    title: Chosen
    recipe: digits
    axes:
      optimizer:
        sgd: {optimizer: {name: sgd, weight_decay: 0.0}}
        adam: {choose: false}
    choose:
      settings: {data: {validation: 0.3}}
      axes:
        rate:
          1: {optimizer: {learning_rate: 0.5}, sgd: {epochs: 3}, adam: {epochs: 4}}
          2: {optimizer: {learning_rate: 0.25}}
        steps: {5: {steps: 5}, 6: {steps: 6}}
    columns: [accuracy]
    """
    sgd, adam = load_study(write(text)).rows
    assert list(sgd.candidates) == ["1-5", "1-6", "2-5", "2-6"]
    assert adam.candidates == {}
    chosen = sgd.candidates["1-6"]
    assert (chosen.final.optimizer.learning_rate, chosen.final.steps) == (0.5, 6)
    assert chosen.final.epochs == 3
    assert (chosen.trial.data.validation, chosen.final.data.validation) == (0.3, 0.0)
    assert sgd.candidates["2-5"].final.epochs == 80
    sgd, _ = load_study(write(text), flags={"steps": "2", "epochs": "9"}).rows
    for candidate in sgd.candidates.values():  # what is typed wins
        assert {candidate.trial.steps, candidate.final.steps} == {2}
        assert {candidate.trial.epochs, candidate.final.epochs} == {9}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("title:", "titel:"), ["'titel'", "Did you mean title?"]),
        (("columns: [accuracy]", ""), ["needs columns"]),
        (("recipe: digits", "recipe: digitz"), ["digitz", "digits"]),
        (("recipe: digits", ""), ["narrow-low", "needs a `recipe`"]),
        (("width: 24", "widht: 24"), ["narrow-low", "widht", "width"]),
        (("width: 24", "width: 0"), ["`model.width` must be an integer of at least 1"]),
        (("[accuracy]", "[acuracy]"), ["'acuracy'", "Did you mean accuracy?"]),
        (("title: Two", "title: [Two"), ["mine.yaml"]),
        (("title: Two axes", "title: 7"), ["`title` must be text", "7"]),
        (("seeds: [3, 4]", "seeds: 3"), ["`seeds` must be a list", "3"]),
        (("seeds: [3, 4]", "seeds: [3, x]"), ["seed", "whole number", "'x'"]),
        (("  width:\n", "  depth: 3\n  width:\n"), ["`axes` must have axes"]),
        (("small:", "choose: {axes: 3}\nsmall:"), ["`choose` must have axes", "3"]),
        (("small:", "fewshot: {sauce: x}\nsmall:"), ["`fewshot`", "sauce"]),
        (("small:", "table: {rows: width, columns: depth}\nsmall:"), ["depth", "rate"]),
        (("small:", "figure: [{kind: pie, y: accuracy}]\nsmall:"), ["pie", "heatmap"]),
        (("small:", "figure: [{kind: bars, y: speed}]\nsmall:"), ["'speed'", "width"]),
    ],
)
def test_a_mistake_in_a_file_is_one_line(write, change, words):
    with pytest.raises(RecipeError) as error:
        checked_study(write(FILE.replace(*change)))
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["postions"], ["no study 'postions'", "Did you mean positions?"]),
        (["table8"], ["no study 'table8'", "It is positions"]),
        (["Figure_4"], ["It is data_size"]),  # "Figures 3 and 4"
        (["figure2"], ["It is vtab"]),  # another paper's is not meant
        (["figure99"], ["no study 'figure99'", "There are"]),
        (["positions", "--device", "H100"], ["`--device`", "without --dry_run"]),
        (["nothing-like-it"], ["There are: adam_sgd, axial"]),
        (["positions", "--rows", "noon"], ["no row 'noon'", "Did you mean none?"]),
        (["positions", "--part", "3/2"], ["`--part` must be N/M"]),
        (["positions", "--epochs", "many"], ["epochs", "whole number", "many"]),
        (["table5", "--small"], ["table5", "no small form"]),
        (["missing.yaml"], ["missing.yaml: no such file"]),
        (["positions", "--dry_run", "--device", "abacus"], ["H100", "'abacus'"]),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(arguments, words):
    with pytest.raises(RecipeError) as error:
        main(["study", *arguments])
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), error.value


def test_a_row_cannot_begin_with_a_later_one(write):
    text = CHAIN.replace('"@first"', '"@third"')
    with pytest.raises(RecipeError, match=r"second: `model.weights` must be @ and an"):
        load_study(write(text))


def test_every_study_is_listed(capsys):
    main(["study"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [p.stem for p in study_files()]
    [line] = [line for line in lines if line.startswith("positions")]
    assert "Position embeddings, Table 8 and appendix D.4 (8 runs, --small 24)" in line


load = functools.cache(checked_study)
FORMS = [
    pytest.param(path.stem, small, id=path.stem + "-small" * small)
    for path in study_files()
    for small in (False, True)
    if not small or summary(path).small_runs is not None
]


@pytest.mark.parametrize(("name", "small"), FORMS)
def test_every_study_of_the_project_is_valid(name, small):
    study = load(name, small)
    assert study.reference
    assert study.figure
    assert len({row.name for row in study.rows}) == len(study.rows)
    if small:
        sources = {row.recipe.data.source for row in study.rows}
        assert all("digit" in source or study.measure == "speed" for source in sources)


# The tables as text, typed once more from arXiv:2010.11929, in their own layout.
TABLE_6 = """
ViT-B/32         7  80.73 86.27 98.61 90.49 93.40 99.27 55
ViT-B/16         7  84.15 88.85 99.00 91.87 95.80 99.56 224
ViT-L/32         7  84.37 88.28 99.19 92.52 95.83 99.45 196
ViT-L/16         7  86.30 89.43 99.38 93.46 96.81 99.66 783
ViT-L/16        14  87.12 89.99 99.38 94.04 97.11 99.56 1567
ViT-H/14        14  88.08 90.36 99.50 94.71 97.11 99.71 4262
R50x1            7  77.54 84.56 97.67 86.07 91.11 94.26 50
R50x2            7  82.12 87.94 98.29 89.20 93.43 97.02 199
R101x1           7  80.67 87.07 98.48 89.17 94.08 95.95 96
R152x1           7  81.88 87.96 98.82 90.22 94.17 96.94 141
R152x2           7  84.97 89.69 99.06 92.05 95.37 98.62 563
R152x2          14  85.56 89.89 99.24 91.92 95.75 98.75 1126
R200x3          14  87.22 90.15 99.34 93.53 96.32 99.04 3306
R50+ViT-B/32     7  84.90 89.15 99.01 92.24 95.75 99.46 106
R50+ViT-B/16     7  85.58 89.65 99.14 92.63 96.65 99.40 274
R50+ViT-L/32     7  85.68 89.04 99.24 92.93 96.97 99.43 246
R50+ViT-L/16     7  86.60 89.72 99.18 93.64 97.03 99.40 859
R50+ViT-L/16    14  87.12 89.76 99.31 93.89 97.36 99.11 1668
"""


def table_6():
    """(our name, epochs, numbers) of each row."""
    for line in TABLE_6.strip().splitlines():
        name, epochs, *numbers = line.split()
        name = name.replace("ViT-", "").replace("/", "")
        long = epochs == "14" and name != "H14"
        yield name + "_14ep" * long, int(epochs), [float(n) for n in numbers]


def test_table_6_is_the_papers():
    columns = ("imagenet", "real", "cifar10", "cifar100", "pets", "flowers")
    accuracy = {
        f"{name}-{column}": number
        for name, _, numbers in table_6()
        for column, number in zip(columns, numbers[:-1], strict=True)
    }
    exaflops = {f"{name}-pretrain": numbers[-1] for name, _, numbers in table_6()}
    study = load("table6")
    assert study.published == {"accuracy": accuracy, "exaflops": exaflops}
    imagenet = {k: v for k, v in accuracy.items() if k.endswith("-imagenet")}
    assert load("compute").published == {"accuracy": imagenet, "exaflops": exaflops}
    epochs = {f"{name}-pretrain": number for name, number, _ in table_6()}
    for row in study.rows:
        if row.name in epochs:
            assert row.recipe.epochs == epochs[row.name]


TABLE_5 = {
    "ImageNet": """
CIFAR-10 98.13 97.77 97.86 97.94
CIFAR-100 87.13 86.31 86.35 87.07
ImageNet 77.91 73.38 76.53 71.16
ReaL 83.57 79.56 82.19 77.83
Flowers 89.49 85.43 89.66 86.36
Pets 93.81 92.04 93.64 91.35""",
    "": """
CIFAR-10 98.95 98.79 99.16 99.13 99.27
CIFAR-100 91.67 91.97 93.44 93.04 93.82
ImageNet 83.97 81.28 85.15 80.99 85.13
ReaL 88.35 86.63 88.40 85.65 88.70
Flowers 99.38 99.11 99.61 99.19 99.51
Pets 94.43 93.02 94.73 93.09 94.82""",
    "JFT-300M": """
CIFAR-10 99.00 98.61 99.38 99.19 99.50
CIFAR-100 91.87 90.49 94.04 92.52 94.55
ImageNet 84.15 80.73 87.12 84.37 88.04
ReaL 88.85 86.27 89.99 88.28 90.33
Flowers 99.56 99.27 99.56 99.45 99.68
Pets 95.80 93.40 97.11 95.83 97.56""",
}


def test_table_5_is_the_papers():
    expected, models = {}, ("B16", "B32", "L16", "L32", "H14")
    for data, text in TABLE_5.items():
        for line in text.strip().splitlines():
            task, *numbers = line.split()
            for model, number in zip(models, numbers, strict=False):
                name = f"{model} ({data})" if data else model
                task_name = task.lower().replace("-", "")
                expected[f"{name}-{task_name}"] = float(number)
    study = load("table5")
    assert study.published == {"accuracy": expected}
    for row in study.rows:  # the recipes state the same
        assert 100 * row.recipe.published_accuracy == pytest.approx(expected[row.name])


def test_tables_2_7_and_8_are_the_papers():
    two = load("table2").published["accuracy"]
    rows = """
    imagenet 88.55 87.76 85.30 87.54 88.4
    real 90.72 90.54 88.62 90.54 90.55
    cifar10 99.50 99.42 99.15 99.37
    cifar100 94.55 93.90 93.25 93.51
    pets 97.56 97.32 94.67 96.62
    flowers 99.68 99.74 99.61 99.63
    vtab 77.63 76.28 72.72 76.29"""
    names = ("H14_JFT", "L16_JFT", "L16_ImageNet21k", "BiT_L", "Noisy_Student")
    cells = [line.split() for line in rows.strip().splitlines()]
    assert two == {
        f"{name}-{task}": float(number)
        for task, *numbers in cells
        for name, number in zip(names, numbers, strict=False)
    }
    seven = load("adam_sgd").published["accuracy"]
    averages = {"R50x1-adam": 89.33, "R50x1-sgd": 88.79}
    averages |= {"R152x2-adam": 94.01, "R152x2-sgd": 93.72}
    for name, average in averages.items():
        numbers = [v for row, v in seven.items() if row.startswith(f"{name}-")]
        assert len(numbers) == 5
        assert sum(numbers) / 5 == pytest.approx(average, abs=0.006)
    eight = list(load("positions").published["fewshot_5"].values())
    default, each, shared = (64.206, 64.001), (63.964, 64.046), (64.292, 64.022)
    lines = [n for pair in zip(default, each, shared, strict=True) for n in pair]
    assert eight == [61.382, *lines, 64.032]


def test_table_9_has_the_published_means():
    published = load("vtab").published["accuracy"]
    # Of Table 2, which has two digits of the same means.
    for model, mean in {
        "H14_JFT": 77.63,
        "L16_JFT": 76.29,
        "L16_ImageNet21k": 72.72,
    }.items():
        numbers = [v for row, v in published.items() if row.startswith(f"{model}-")]
        assert len(numbers) == 19
        assert sum(numbers) / 19 == pytest.approx(mean, abs=0.02)
    groups = [row.labels["group"] for row in load("vtab").rows]
    counts = {group: groups.count(group) for group in groups}
    assert counts == {"Natural": 7, "Specialized": 4, "Structured": 8}
    candidates = load("vtab").rows[0].candidates.values()
    assert {(c.trial.optimizer.learning_rate, c.trial.steps) for c in candidates} == {
        (rate, steps) for rate in (0.001, 0.003, 0.01, 0.03) for steps in (500, 2500)
    }
    for candidate in candidates:
        assert candidate.trial.data.validation == "validation"
        assert candidate.final.data.train == "train+validation"


def test_the_comparison_has_all_twelve_published_figures():
    tables = {
        "accuracy_before": "32.90 42.30 36.60",
        "macro_f1_before": "30.70 36.20 26.90",
        "accuracy": "99.33 92.76 80.03",
        "macro_f1": "99.33 92.77 79.62",
    }
    names = ("ViT-B16", "ResNet-152", "ResNet-50")
    study = load("comparison")
    assert study.published == {
        column: {
            name: float(number)
            for name, number in zip(names, numbers.split(), strict=True)
        }
        for column, numbers in tables.items()
    }
    for row in study.rows:
        recipe = row.recipe
        assert (recipe.epochs, recipe.batch_size) == (3, 16)
        assert recipe.optimizer.learning_rate == 1e-5
        assert recipe.model.head_stddev > 0
