"""Build wheel and sdist, check what is in the wheel, install it in an environment of its own and try it.

python -m scripts.wheel [--here] [--out dist]

`--here` lends the new environment the dependencies of this one, so that nothing is downloaded.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src")
BACKEND = "from setuptools import build_meta as b; import sys; b.build_{kind}(sys.argv[1])"
SMOKE = """
import sys, tempfile, torch, flatclr
z = torch.eye(4, requires_grad=True)
flatclr.FlatNCE(temperature=flatclr.EssControl(0.5))(z, z).backward()
with tempfile.TemporaryDirectory() as out:
    config = flatclr.TrainConfig(steps=2, batch_size=8, eval_samples=50, device="cpu", out=out)
    run = flatclr.train(config.changed(encoder_options={"width": 8}))
    assert flatclr.load_encoder(run.path)(torch.rand(2, 1, 28, 28)).isfinite().all()
assert flatclr.__file__.startswith(sys.prefix), flatclr.__file__
print("flatclr", flatclr.__version__, "works from", flatclr.__file__)
"""


def build(out: Path, kinds: tuple[str, ...] = ("wheel", "sdist")) -> list[Path]:
    """Build from a copy of the sources, without isolation, so that neither the tree nor the network is touched."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in SOURCES:
            source, target = ROOT / name, Path(scratch) / name
            ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source, target, ignore=ignore) if source.is_dir() else shutil.copy(source, target)
        for kind in kinds:
            command = [sys.executable, "-c", BACKEND.format(kind=kind), str(out.resolve())]
            subprocess.run(command, cwd=scratch, check=True, capture_output=True)
    patterns = {"wheel": "flatclr-*.whl", "sdist": "flatclr-*.tar.gz"}
    return [max(out.glob(patterns[kind]), key=lambda path: path.stat().st_mtime) for kind in kinds]


def problems(wheel: Path) -> list[str]:
    """What a wheel lacks of the package, or holds besides it."""
    package = ROOT / "src" / "flatclr"
    wanted = {f"flatclr/{path.relative_to(package).as_posix()}" for path in package.rglob("*") if _ships(path)}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        about = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(about).decode())
        entries = archive.read(about.replace("METADATA", "entry_points.txt")).decode()
    inside = {name for name in names if ".dist-info/" not in name}
    found = [f"{name} is missing" for name in sorted(wanted - inside)]
    found += [f"{name} does not belong there" for name in sorted(inside - wanted)]
    found += [f"metadata lack {field}" for field in ("Name", "Version", "Requires-Python") if not metadata[field]]
    if "flatclr = flatclr.cli.main:main" not in entries:
        found.append("the command flatclr is missing")
    if not any(name.endswith("LICENSE") for name in names):
        found.append("the licence is missing")
    return found


def _ships(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def try_out(wheel: Path, *, here: bool) -> None:
    """Install it in a new environment, and train two steps there."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        if here:
            found = subprocess.run(
                [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                check=True, capture_output=True, text=True,
            )  # fmt: skip
            (Path(found.stdout.strip()) / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
        how = ["--no-deps"] if here else ["--constraint", str(ROOT / "constraints.txt")]
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *how, str(wheel.resolve())], check=True)
        subprocess.run([python, "-I", "-c", SMOKE], cwd=folder, check=True)
        subprocess.run([python, "-I", "-m", "flatclr", "--version"], cwd=folder, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--here", action="store_true", help="use the dependencies of this environment")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where wheel and sdist go")
    options = parser.parse_args()
    built = build(options.out)
    if found := problems(built[0]):
        sys.exit("\n".join(found))
    try_out(built[0], here=options.here)
    print("\n".join(map(str, built)))


if __name__ == "__main__":
    main()
