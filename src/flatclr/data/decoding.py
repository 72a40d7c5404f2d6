"""Encoded images to pixels, by threads or by processes of their own.

Small images need Python for about half of their decoding, and threads take turns at that: more than two or three gain
nothing. Processes do not, at the price of another copy.
A process runs this file by itself, without the package around it: PIL and numpy are all it imports, so it starts in a
tenth of a second, and the program that started it needs no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps

Pixels = NDArray[np.uint8]
JOB = 16  # images: long enough that talking about them costs little, short enough to share out a batch
MOST_THREADS = 2
NICENESS = 10  # of decoding processes: where all cores are busy, the step that waits for the host comes first
PIPE_BYTES = 2**20
SIXTEEN_BITS_AS_I = ("PNG", "PPM")  # formats whose images of mode I are those of 16 bits
NO_FILE = "a pipe, a socket, a device or a folder, and no file"
UNREACHABLE = "not reached: "  # how a reason begins where the system, not the image, is the problem


class Place(NamedTuple):
    """Where a stored image lies on the disk; to the end of the file without `size`."""

    path: str
    offset: int = 0
    size: int | None = None

    def open(self) -> BinaryIO:
        if self.size is None and not self.offset:
            return open(self.path, "rb", opener=_open_regular)
        with open(self.path, "rb", opener=_open_regular) as file:
            file.seek(self.offset)
            return io.BytesIO(file.read(-1 if self.size is None else self.size))


def _open_regular(path: str, flags: int) -> int:
    """As os.open; a pipe, a socket or a device is refused, where reading could wait for ever."""
    try:
        descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP):  # what a socket answers
            raise ValueError(NO_FILE) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(NO_FILE)
    return descriptor


class Openable(Protocol):
    def open(self) -> BinaryIO: ...


def decode(file: Openable, out_CSS: Pixels) -> str | None:
    """Fill `out_CSS`, the shorter side brought to S and the centre kept; returns what is wrong with the image."""
    channels, size, _ = out_CSS.shape
    mode = "L" if channels == 1 else "RGB"
    try:
        with file.open() as stream, Image.open(stream) as image:
            image.draft(mode, (size, size))  # lets JPEG decode at a fraction of its size
            ImageOps.exif_transpose(image, in_place=True)
            flat = on_white(eight_bit(image)).convert(mode)
            side = min(flat.size)
            left, top = (flat.width - side) // 2, (flat.height - side) // 2
            square = flat.crop((left, top, left + side, top + side))
            square = square.resize((size, size), Image.Resampling.BILINEAR)
        out_CSS[:] = np.asarray(square).reshape(size, size, channels).transpose(2, 0, 1)
    except Exception as error:  # decoders fail in many ways on damaged files
        return what_is_wrong(error)
    return None


def what_is_wrong(error: Exception) -> str:
    """With an image that could not be read, or with the way to it."""
    if isinstance(error, OSError) and error.errno is not None:
        return f"{UNREACHABLE}{os.strerror(error.errno)}"
    return reason_of(error)


def reason_of(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")


def eight_bit(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))  # convert() would clip at 255
    if image.mode == "I" and image.format in SIXTEEN_BITS_AS_I:
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode} have no known brightness range; save it with 8 or 16 bits")
    return image


def has_alpha(image: Image.Image) -> bool:
    """Whether parts of it may be transparent."""
    return image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info


def on_white(image: Image.Image) -> Image.Image:
    """What a person sees of it: colours under transparent pixels are whatever a program left there."""
    if not has_alpha(image):
        return image
    seen = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)


def decode_all(files: Sequence[Openable], out_NCSS: Pixels) -> dict[int, str]:
    """Fill `out_NCSS`; returns what is wrong, by row."""
    reasons = ((row, decode(file, out_NCSS[row])) for row, file in enumerate(files))
    return {row: reason for row, reason in reasons if reason is not None}


def available_cores() -> int:
    """Cores this process may use, which a container or a scheduler can make fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Decoders:
    """Workers that decode images in jobs of a few; they start with their first job. May be used from many threads.

    Each is a thread; where `processes` are allowed and there are more than a few workers, each has a process at its
    side that does the work, for files with a `place`.
    """

    def __init__(self, workers: int, *, processes: bool) -> None:
        self.workers = workers
        self.processes = processes and workers > MOST_THREADS and bool(sys.executable)
        self._owner, self._lock = -1, threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Decoders, processes=self.processes), (self.workers,)  # whoever gets a copy hires its own workers

    def decode(self, files: Sequence[Openable], out_NCSS: Pixels) -> dict[int, str]:
        """Fill `out_NCSS` in order; returns what is wrong, by row."""
        starts = range(0, len(files), JOB)
        team = self._hired()
        jobs = [team.submit(files[start : start + JOB], out_NCSS[start : start + JOB]) for start in starts]
        wrong = zip(starts, (job.result() for job in jobs), strict=True)
        return {start + row: reason for start, reasons in wrong for row, reason in reasons.items()}

    def close(self) -> None:
        """Let the workers go; the next job would start others."""
        with self._lock:
            if self._owner == os.getpid():
                self._team.dismiss()
            self._owner = -1

    def _hired(self) -> _Team:
        with self._lock:
            if self._owner != os.getpid():  # threads and pipes do not survive a fork
                self._team, self._owner = _Team(self.workers, processes=self.processes), os.getpid()
            return self._team


class _Team:
    def __init__(self, workers: int, *, processes: bool) -> None:
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="flatclr-decode")
        self.own, self.processes = threading.local(), processes
        self.started: list[_Process] = []
        self.dismiss = weakref.finalize(self, _dismiss, self.pool, self.started)

    def submit(self, files: Sequence[Openable], out_NCSS: Pixels) -> Future[dict[int, str]]:
        return self.pool.submit(self._do if self.processes else decode_all, files, out_NCSS)

    def _do(self, files: Sequence[Openable], out_NCSS: Pixels) -> dict[int, str]:
        if not hasattr(self.own, "process"):
            self.own.process = _Process()
            self.started.append(self.own.process)
        done: dict[int, str] = self.own.process.decode(files, out_NCSS)
        return done


def _dismiss(pool: ThreadPoolExecutor, started: list[_Process]) -> None:
    pool.shutdown(wait=False, cancel_futures=True)  # the last to leave may be a thread of the pool
    for process in started:
        process.close()


class _Process:
    """One request is a line of JSON; its answer the pixels, then a line of JSON with what is wrong."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-W", "ignore", __file__]  # headers were opened, and warned about, before
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.child.stdin is not None
        assert isinstance(self.child.stdout, io.BufferedReader)
        self.requests, self.answers = self.child.stdin, self.child.stdout
        _widen(self.answers)

    def decode(self, files: Sequence[Any], out_NCSS: Pixels) -> dict[int, str]:
        request = {
            "shape": out_NCSS.shape,
            "files": [_absolute(file.place) for file in files],
            "most_pixels": Image.MAX_IMAGE_PIXELS,  # what a user may have set here holds there
            "truncated": ImageFile.LOAD_TRUNCATED_IMAGES,
        }
        try:
            self.requests.write(json.dumps(request).encode() + b"\n")
            self.requests.flush()
            self.answers.readinto(out_NCSS.data.cast("B"))
            return {int(row): reason for row, reason in json.loads(self.answers.readline()).items()}
        except (OSError, ValueError) as error:  # a dead pipe is EINVAL on Windows
            self.child.kill()
            raise ChildProcessError(
                f"a process that decodes images must stay alive, got exit code {self.child.wait()} within {JOB} images "
                f"from {files[0].name}; set fewer workers if memory ran out."
            ) from error

    def close(self) -> None:
        with suppress(OSError):
            self.requests.close()  # the end of its work
        self.answers.close()
        self.child.wait()


def _absolute(place: Place) -> Place:
    """The process stays in the folder it was started in."""
    return place if os.path.isabs(place.path) else place._replace(path=os.path.abspath(place.path))


def _widen(pipe: Any) -> None:
    """Room for a whole answer where the system gives it, so that neither side waits for the other within one."""
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """What a decoding process does until its input ends."""
    for line in requests:
        request = json.loads(line)
        Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = request["most_pixels"], request["truncated"]
        out_NCSS: Pixels = np.zeros(request["shape"], np.uint8)
        wrong = decode_all([Place(*place) for place in request["files"]], out_NCSS)
        answers.write(out_NCSS.data.cast("B"))
        answers.write(json.dumps(wrong).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"):  # for the program that started this one, whose end ends it
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    with suppress(BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.buffer)
