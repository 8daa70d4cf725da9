"""The progress of a run: its step, where it resumed, and whether it must stop."""

from dataclasses import dataclass, field
from typing import TypeAlias

Logs: TypeAlias = dict[str, float]  # figures by name, as Keras gives them to callbacks


class EvaluationStopped(Exception):
    """The evaluation at an epoch's end was left out, as the run must stop."""


@dataclass
class Progress:
    """Where a run is, shared by the trainer, the recorder and the signal handler.

    The trainer counts steps and epochs, the recorder sets `first_step` from a
    checkpoint, and the handler of SIGTERM sets `stop_requested`.

    Attributes:
        epoch: Finished Keras epochs.
        epoch_step: Finished steps of the current epoch, skipped ones included.
        steps_per_epoch: Steps of a Keras epoch; None where the dataset does not know
            its length, which a run that resumes always does.
        first_step: The step of the checkpoint from which the run resumes. The trainer
            skips the steps of the first epoch up to it.
        stop_requested: Whether this process was asked to stop.
        alone: Whether there are no other workers, with which a stop has to be agreed.
        unsaved: Whether the end of the process would lose a step, or leave other
            workers waiting. Not while a run's first step is compiled.
        stopping: Whether all workers have agreed to stop after the current step.
        lag: Steps between the one whose figures callbacks get and the current one.
        logs: The training figures of an epoch whose steps are done, until its
            evaluation is.
    """

    epoch: int = 0
    epoch_step: int = 0
    steps_per_epoch: int | None = None
    first_step: int = 0
    stop_requested: bool = False
    alone: bool = False
    unsaved: bool = True
    stopping: bool = False
    lag: int = 0
    logs: Logs = field(default_factory=dict)

    @property
    def step(self) -> int:
        """Finished steps of the whole run."""
        return self.epoch * (self.steps_per_epoch or 0) + self.epoch_step

    @property
    def skipping(self) -> bool:
        """Whether the steps counted so far were done before the run resumed."""
        return self.step <= self.first_step

    @property
    def skips_evaluation(self) -> bool:
        """Whether the run must stop before, or during, the epoch's evaluation."""
        return self.stopping or (self.alone and self.stop_requested)

    @property
    def at_epoch_end(self) -> bool:
        """Whether the current epoch has no step left."""
        return self.epoch_step == self.steps_per_epoch

    def begin_epoch(self, epoch: int) -> None:
        """Start counting the steps of an epoch, itself counted from 0."""
        self.epoch, self.epoch_step = epoch, 0

    def advance(self, steps_per_execution: int) -> int:
        """Count the steps of one execution; the last one of an epoch may be shorter.

        Returns:
            The number of steps to execute.
        """
        steps = steps_per_execution
        if self.steps_per_epoch is not None:
            steps = min(steps, self.steps_per_epoch - self.epoch_step)
        self.epoch_step += steps
        return steps
