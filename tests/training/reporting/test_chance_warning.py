"""The advice where validation stays near chance."""

import numpy as np
import pytest

from training.reporting.chance_warning import ChanceWarning


def printed(accuracies, capsys, labels=(0,) * 30 + (1,) * 20):
    warning = ChanceWarning(np.array(labels))
    warning.set_params({"epochs": len(accuracies)})
    for epoch, accuracy in enumerate(accuracies):
        warning.on_epoch_end(epoch, {"val_accuracy": accuracy})
    return capsys.readouterr().out


@pytest.mark.parametrize("late", [0.55, 0.7])
def test_a_run_near_the_most_frequent_class_gets_advice_once(late, capsys):
    text = printed([0.9, late, 0.9, 0.9, 0.9], capsys)
    assert text.count("near chance, 0.6000 (the share of the most") == 1
    assert "finetune_folder" in text


def test_a_run_that_learns_gets_none(capsys):
    assert printed([0.6, 0.75, 0.6, 0.6, 0.6], capsys) == ""


def test_a_few_images_say_nothing(capsys):
    """Of four, all right are within two deviations of a guess."""
    labels = (0, 0, 1, 2)
    assert printed([0.5, 1.0, 1.0, 1.0, 1.0], capsys, labels) == ""
    assert printed([0.5, 0.25, 1.0, 1.0, 1.0], capsys, labels) == ""
