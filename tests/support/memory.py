"""What an operation allocates."""

import weakref
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Records the largest tensor any operation makes, forward and backward."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.elements = max(self.elements, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out


class PeakMemory(TorchDispatchMode):
    """Records the most bytes that tensors made meanwhile take at once, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.bytes = 0
        self.live: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._note(leaf.untyped_storage())
        return out

    def _note(self, storage: UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.live:
            self.live.add(key)
            self.now += size
            self.bytes = max(self.bytes, self.now)
            weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self.live.remove(key)
        self.now -= size
