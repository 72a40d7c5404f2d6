"""Why a run ends before its last step, each with the exit code of a program that ends so."""

from flatclr.training.stopping import RESUME_ME


class TrainingStoppedError(RuntimeError):
    """The run cannot go on; its last good checkpoint is intact."""

    exit_code = 1


class DivergedError(TrainingStoppedError):
    """Losses or gradients stayed not finite: what the run does, wherever it is made."""


class TrainingInterruptedError(TrainingStoppedError):
    """The run was asked to stop, and did so with a checkpoint: it can go on as if nothing had happened."""

    exit_code = RESUME_ME
