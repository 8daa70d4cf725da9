"""The progress of a run: steps, epochs, and the steps that a resumed run skips."""

from training.engine.progress import Progress


def test_steps_are_counted_over_epochs():
    progress = Progress(steps_per_epoch=5)
    progress.begin_epoch(3)
    assert [progress.advance(2) for _ in range(3)] == [2, 2, 1]
    assert progress.step == 20
    assert progress.at_epoch_end


def test_an_epoch_of_unknown_length_never_ends():
    progress = Progress()
    assert [progress.advance(2) for _ in range(3)] == [2, 2, 2]
    assert progress.step == 6
    assert not progress.at_epoch_end
    assert not progress.skipping


def test_a_resumed_run_skips_the_steps_up_to_its_checkpoint():
    progress = Progress(steps_per_epoch=4, first_step=6)
    progress.begin_epoch(1)
    skipped = []
    for _ in range(4):
        progress.advance(1)
        skipped.append(progress.skipping)
    assert skipped == [True, True, False, False]
