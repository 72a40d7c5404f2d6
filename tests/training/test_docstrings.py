"""What users call of training is exported and documented."""

from __future__ import annotations

import inspect
import re

import flatclr
from flatclr import training


def test_what_users_call_is_exported_and_documented() -> None:
    assert flatclr.train is training.train
    assert flatclr.TrainConfig is training.TrainConfig
    for name in training.__all__:
        exported = getattr(training, name)
        if isinstance(exported, type) or inspect.isfunction(exported):
            assert inspect.getdoc(exported), name
            assert (inspect.getdoc(exported) or "").splitlines()[0].endswith((".", ":")), name
    for part in ("Args:", "Returns:", "Raises:", ">>> "):
        assert part in (flatclr.train.__doc__ or "")
    documented = re.findall(r"^        (\w+): ", flatclr.train.__doc__ or "", re.MULTILINE)
    assert set(inspect.signature(flatclr.train).parameters) <= set(documented)
