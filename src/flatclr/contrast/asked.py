"""What operators in graphs of torch.compile are asked, as far as it is no tensor and no number: a line of text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from flatclr import distributed
from flatclr.contrast.relation import PAIRINGS, Layout, layout_of

SEPARATOR = "|"
SWITCHES = {  # what may be on, by the letter that says so
    "in_batch": "i",
    "normalize": "n",
    "gather": "g",
    "shared_loss": "s",
    "squares": "q",
    "moment": "m",
    "slopes": "d",
    "positives": "p",
    "in_order": "o",
}


@dataclass(frozen=True)
class Asked:
    """Everything about a call that is not a tensor or a number.

    >>> asked = Asked.of("fused", "cross", 2, "", "", gather=True, squares=False)
    >>> asked.text, read(asked.text).has("gather")
    ('fused|cross|2|g||', True)
    """

    route: str
    pairing: str
    views: int
    switches: str  # letters of `SWITCHES`
    phi: str  # where its device code is, "module:function"; "" for a log-sum-exp
    phi_kinds: str  # of its parameters: t a tensor, f a number

    @classmethod
    def of(cls, route: str, pairing: str, views: int, phi: str, phi_kinds: str, **on: bool) -> Asked:
        """`on`: the switches by name."""
        return cls(route, pairing, views, "".join(SWITCHES[name] for name in on if on[name]), phi, phi_kinds)

    @property
    def text(self) -> str:
        return SEPARATOR.join((self.route, self.pairing, str(self.views), self.switches, self.phi, self.phi_kinds))

    def has(self, switch: str) -> bool:
        return SWITCHES[switch] in self.switches

    @property
    def ranks(self) -> distributed.Ranks:
        return distributed.ranks_sharing_a_batch(self.has("gather"))

    def anchors(self, own_samples: int) -> int:
        """Of all ranks."""
        return len(PAIRINGS[self.pairing](self.views)) * own_samples * self.ranks.size

    def layout(self, own_samples: int, queued: int) -> Layout:
        plan, in_batch = PAIRINGS[self.pairing], self.has("in_batch")
        return layout_of(self.pairing, plan, self.ranks, self.views, own_samples, queued, in_batch)


@lru_cache(maxsize=256)
def read(text: str) -> Asked:
    """The inverse of `Asked.text`."""
    route, pairing, views, switches, phi, phi_kinds = text.split(SEPARATOR)
    return Asked(route, pairing, int(views), switches, phi, phi_kinds)
