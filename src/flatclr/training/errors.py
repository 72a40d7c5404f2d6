"""Why a run ends before its last step."""


class TrainingStoppedError(RuntimeError):
    """The run cannot go on; its last good checkpoint is intact."""


class TrainingInterruptedError(TrainingStoppedError):
    """The run was asked to stop, and did so with a checkpoint: it can go on as if nothing had happened."""
