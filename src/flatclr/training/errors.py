"""Why a run ends before its last step."""


class TrainingStoppedError(RuntimeError):
    """The run cannot go on; its last good checkpoint is intact."""
