"""From data to an encoder: describe a run, train it, listen to it, and load what it made.

>>> from flatclr.training import RECIPES
>>> RECIPES["cifar10"]().changed(epochs=10).objective
'flatnce'
"""

from flatclr.models.trained import load_network
from flatclr.training.config import TrainConfig, describe_settings
from flatclr.training.errors import DivergedError, TrainingInterruptedError, TrainingStoppedError
from flatclr.training.events import (
    Evaluated,
    Event,
    Finished,
    Forecast,
    Listener,
    Logged,
    Measured,
    Progressed,
    Saved,
    Started,
    Stopped,
    Warned,
)
from flatclr.training.launch import process_group
from flatclr.training.recipes import RECIPES
from flatclr.training.result import RunResult
from flatclr.training.settings import Setting
from flatclr.training.stopping import StopRequest
from flatclr.training.trainer import train

__all__ = [
    "RECIPES",
    "DivergedError",
    "Evaluated",
    "Event",
    "Finished",
    "Forecast",
    "Listener",
    "Logged",
    "Measured",
    "Progressed",
    "RunResult",
    "Saved",
    "Setting",
    "Started",
    "StopRequest",
    "Stopped",
    "TrainConfig",
    "TrainingInterruptedError",
    "TrainingStoppedError",
    "Warned",
    "describe_settings",
    "load_network",
    "process_group",
    "train",
]
