"""Names every doctest may use."""

import importlib.util
import os
from typing import Any

# some virtual machines announce AMX and stop the process that uses it; read when the first product is made
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch

if importlib.util.find_spec("triton") and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined: before anything asks for the fused backend

import flatclr

NEEDING = {  # packages that need not be installed, and modules that cannot be imported without them
    "triton": [
        "src/flatclr/contrast/kernels/fused_*.py",
        "src/flatclr/contrast/kernels/strips*.py",
        "src/flatclr/contrast/kernels/whole_triton.py",
        "src/flatclr/data/views/fused.py",
        "src/flatclr/data/views/kernels/*.py",
        "src/flatclr/models/fused_batch_norm.py",
        "src/flatclr/models/kernels/*.py",
        "src/flatclr/objectives/device/*.py",
    ],
    "lightning": ["src/flatclr/integrations/lightning.py"],
    "sentence_transformers": ["src/flatclr/integrations/sentence_transformers.py"],
}
collect_ignore_glob = [
    glob for package, globs in NEEDING.items() if not importlib.util.find_spec(package) for glob in globs
]


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(torch=torch, flatclr=flatclr)
