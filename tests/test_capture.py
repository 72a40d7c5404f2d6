"""What is to be captured must not wait for the device, and a broken capture says what broke it."""

from typing import Any

import pytest
import torch

from flatclr.capture import WaitsForDeviceError, first_line, first_of, without_waiting


@pytest.mark.parametrize(
    ("message", "kind"),
    [("called a synchronizing CUDA operation", WaitsForDeviceError), ("out of memory", RuntimeError)],
)
def test_waiting_is_told_from_other_errors_and_the_mode_is_put_back(
    message: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[Any] = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def work() -> None:
        raise RuntimeError(message)

    with pytest.raises(RuntimeError) as raised:
        without_waiting(work, "the step")
    assert type(raised.value) is kind
    assert modes == [0, "error", 0]


def test_a_broken_capture_is_explained_by_what_broke_it() -> None:
    ending = RuntimeError("operation failed due to a previous error during capture")
    ending.__context__ = RuntimeError("the cause.\nand more")
    assert first_of(ending) is ending.__context__
    assert first_line(first_of(ending)) == "the cause"
