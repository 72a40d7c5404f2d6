"""What is to be captured must not wait for the device, and a broken capture says what broke it."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from flatclr import capture
from flatclr.capture import (
    WARMUPS,
    CaptureError,
    WaitsForDeviceError,
    first_line,
    first_of,
    is_out_of_memory,
    warm_up,
    without_waiting,
)


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


def test_the_cpu_allocator_is_understood_when_it_runs_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**58, dtype=torch.float32)
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


@pytest.mark.parametrize("fails", [False, True], ids=["", "an error on the way"])
def test_what_is_tried_before_a_capture_leaves_no_trace(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "without_waiting", lambda work, _: work())
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout())
    optimizer = torch.optim.AdamW(layer.parameters(), capturable=False)
    tries: list[int] = []

    def step() -> None:
        tries.append(1)
        optimizer.zero_grad()
        layer(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        if fails and len(tries) == WARMUPS:
            raise RuntimeError("broken")

    def state() -> list[torch.Tensor]:
        moments = [value for values in optimizer.state.values() for value in values.values()]
        return [*(p.detach() for p in layer.parameters()), *layer.buffers(), *moments]

    before, random = {name: value.clone() for name, value in layer.state_dict().items()}, torch.get_rng_state()
    if fails:
        with pytest.raises(RuntimeError, match="broken"):
            warm_up(step, "it", state, torch.device("cpu"))
    else:
        warm_up(step, "it", state, torch.device("cpu"))
    assert len(tries) == WARMUPS
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert all(not moment.any() for values in optimizer.state.values() for moment in values.values())


@pytest.fixture
def _no_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a capture asks of CUDA, without it."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: "graph")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(device=device))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    capture._stream_of.cache_clear()
    yield
    capture._stream_of.cache_clear()


@pytest.mark.usefixtures("_no_cuda")
def test_a_capture_is_made_on_the_device_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current device may be another, and the stream that PyTorch captures on by default that of another still."""
    seen: list[Any] = []

    class Entered:
        def __init__(self, *given: Any, **options: Any) -> None:
            seen.append((*given, options))

        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(torch.cuda, "device", Entered)
    monkeypatch.setattr(torch.cuda, "graph", Entered)
    device = torch.device("cuda:1")
    assert capture.captured(lambda: 3, device, others_may_allocate=True) == ("graph", 3)
    (graph, options), of_device = seen
    assert graph == "graph"
    assert options.pop("stream").device == device
    assert options == {"pool": None, "capture_error_mode": "thread_local"}
    assert of_device == (device, {})


@pytest.mark.usefixtures("_no_cuda")
def test_captures_on_a_device_share_their_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else graphs that share a pool would each keep memory of their own: it is used again on one stream alone."""
    streams: list[Any] = []

    def entered(*_: Any, stream: Any, **options: Any) -> Any:
        streams.append(stream)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "graph", entered)
    for device in ("cuda", "cuda:0", "cuda:1", "cuda"):
        capture.captured(lambda: None, torch.device(device))
    first, same, other, again = streams
    assert first is same is again
    assert other is not first


@pytest.mark.usefixtures("_no_cuda")
@pytest.mark.parametrize("ends_well", [True, False])
def test_a_capture_that_runs_out_of_memory_lets_go_of_what_it_held(
    ends_well: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: who falls back to eager work needs the memory before a collection of garbage."""

    class Capture:
        def __init__(self, *_: Any, **options: Any) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None:
            if not ends_well:
                raise RuntimeError("operation failed due to a previous error during capture")

    held: list[Any] = []

    def work() -> None:
        activations = torch.zeros(3)
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(torch.cuda, "graph", Capture)
    gc.disable()
    try:
        with suppress(torch.OutOfMemoryError):
            capture.captured(work, torch.device("cuda"))
        assert held[0]() is None
    finally:
        gc.enable()


@pytest.mark.usefixtures("_no_cuda")
@pytest.mark.parametrize(
    ("error", "kind"),
    [(torch.OutOfMemoryError("no memory"), torch.OutOfMemoryError), (RuntimeError("no memory"), CaptureError)],
)
def test_a_broken_capture_says_what_broke_it(
    error: RuntimeError, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to who asks again for what went wrong first."""

    class Broken:
        def __init__(self, *_: Any, **options: Any) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None:
            raise RuntimeError("operation failed due to a previous error during capture")

    def work() -> None:
        raise error

    monkeypatch.setattr(torch.cuda, "graph", Broken)
    with pytest.raises(RuntimeError) as raised:
        capture.captured(work, torch.device("cuda"))
    assert type(raised.value) is kind
    assert first_line(first_of(raised.value)) == "no memory"
