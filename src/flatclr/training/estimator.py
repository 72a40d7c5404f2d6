"""`ContrastiveEncoder`: two tables with a row each per sample, by scikit-learn's conventions."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from flatclr.data.sources import Dataset, PairedArrays
from flatclr.evaluation.features import frozen
from flatclr.extras import needed
from flatclr.models.network import TwoTowers
from flatclr.training.build import build
from flatclr.training.config import TrainConfig
from flatclr.training.loop import Loop
from flatclr.training.recorder import Recorder
from flatclr.training.validation import retrieval_at_1

_base = needed("sklearn.base", by="flatclr.ContrastiveEncoder")
_checks = needed("sklearn.utils.validation", by="flatclr.ContrastiveEncoder")
__all__ = ["ContrastiveEncoder"]

FEWEST_ROWS = 8
HELD_OUT = 0.1
ROWS_AT_ONCE = 4096


class ContrastiveEncoder(_base.TransformerMixin, _base.BaseEstimator):  # type: ignore[misc, name-defined]
    """Embeddings of two tables whose rows belong together, so that each row finds its partner by cosine.

    A network for each table is trained by a contrastive objective; columns are brought to mean 0 and deviation 1.

    Args:
        components: the dimension of the embeddings.
        objective: of `flatclr.objectives.OBJECTIVES`.
        ess_target: the effective sample size of the negatives to hold.
        width: of the networks' layers.
        batch_size: rows of a step; all of a smaller table.
        epochs: passes over the rows.
        learning_rate: after warmup.
        random_state: the seed; a number.

    Attributes:
        metrics_: of the evaluation at the end, on a tenth of the rows that was held out where there are many.
        n_features_in_: columns of X.

    >>> rng = np.random.default_rng(0)
    >>> shared = rng.normal(size=(300, 2))
    >>> X, Y = (shared @ rng.normal(size=(2, 5)) for _ in range(2))
    >>> encoder = flatclr.ContrastiveEncoder(components=4, epochs=3).fit(X, Y)
    >>> encoder.transform(X).shape, encoder.transform_y(Y).shape
    ((300, 4), (300, 4))
    """

    def __init__(
        self,
        components: int = 16,
        *,
        objective: str = "flatnce",
        ess_target: float = 0.25,
        width: int = 128,
        batch_size: int = 128,
        epochs: float = 50,
        learning_rate: float = 1e-3,
        random_state: int = 0,
    ) -> None:
        self.components, self.objective, self.ess_target, self.width = components, objective, ess_target, width
        self.batch_size, self.epochs, self.learning_rate = batch_size, epochs, learning_rate
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train on rows that belong together.

        Args:
            X: [N, d].
            y: the other table, [N, e] or [N].

        Returns:
            Itself.

        Raises:
            ValueError: there is no other table, or the tables do not fit together.
        """
        if y is None:
            raise ValueError(
                "y must be the other table, got None; requires y to be passed, but the target y is None: fit(X, Y)."
            )
        X, y = _checks.validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=FEWEST_ROWS
        )
        x_rows, y_rows = np.asarray(X, float), np.asarray(y, float).reshape(len(X), -1)
        self._scales = [_scale(rows) for rows in (x_rows, y_rows)]
        pairs = PairedArrays(*(_scaled(r, s) for r, s in zip((x_rows, y_rows), self._scales, strict=True)))
        with torch.random.fork_rng(devices=()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parts = build(self._config(len(pairs)), data=_split(pairs, int(self.random_state or 0)))
            self.metrics_ = Loop(parts, Recorder(parts)).run()
        network = parts.train_step.bare_network
        assert isinstance(network, TwoTowers)
        self.network_ = network.cpu().double().eval()  # a row is embedded the same whatever stands beside it
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Embeddings of rows of the first table.

        Args:
            X: [N, d].

        Returns:
            Rows of length 1, [N, components].
        """
        _checks.check_is_fitted(self, "network_")
        rows = _checks.validate_data(self, X, dtype=np.float64, reset=False)
        return self._embedded(rows, side=0)

    def transform_y(self, Y: Any) -> NDArray[np.float64]:
        """Embeddings of rows of the other table, to be compared with those of `transform` by their products.

        Args:
            Y: [N, e] or [N].

        Returns:
            Rows of length 1, [N, components].
        """
        _checks.check_is_fitted(self, "network_")
        rows = _checks.check_array(np.asarray(Y, float).reshape(len(Y), -1))
        if rows.shape[1] != len(self._scales[1][0]):
            raise ValueError(f"Y must have {len(self._scales[1][0])} columns, got {rows.shape[1]}; pass what fit took.")
        return self._embedded(rows, side=1)

    def score(self, X: Any, y: Any) -> float:
        """How often the nearest row of the other table is a row's own.

        Args:
            X: [N, d].
            y: the other table.

        Returns:
            A share of 1.
        """
        return retrieval_at_1(torch.from_numpy(self.transform(X)), torch.from_numpy(self.transform_y(y)))

    @property
    def _n_features_out(self) -> int:
        return int(self.components)

    def _config(self, rows: int) -> TrainConfig:
        return TrainConfig(
            objective=self.objective,
            ess_target=self.ess_target,
            embedding=self.components,
            encoder_options={"width": self.width},
            batch_size=min(self.batch_size, rows - int(HELD_OUT * rows) if rows >= 40 else rows),
            epochs=float(self.epochs),
            learning_rate=self.learning_rate,
            seed=int(self.random_state or 0),
            device="cpu",
            eval_start=False,
            eval_every=10**9,
            log_every=10**9,
        )

    def _embedded(self, rows: NDArray[np.float64], *, side: int) -> NDArray[np.float64]:
        tower = (self.network_.tower_x, self.network_.tower_y)[side]
        scaled = torch.from_numpy(_scaled(rows, self._scales[side]))
        with frozen(self.network_):
            embedded = [torch.nn.functional.normalize(tower(part)[0], dim=1) for part in scaled.split(ROWS_AT_ONCE)]
        return torch.cat(embedded).numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.non_deterministic = False
        return tags


def _scale(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    deviation = rows.std(0)
    return rows.mean(0), np.where(deviation > 0, deviation, 1.0)


def _scaled(rows: NDArray[np.float64], scale: tuple[NDArray[np.float64], NDArray[np.float64]]) -> NDArray[np.float64]:
    return (rows - scale[0]) / scale[1]


def _split(pairs: PairedArrays, seed: int) -> Dataset:
    if len(pairs) < 40:
        return Dataset("table", pairs, None)
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))
    held_out = int(HELD_OUT * len(pairs))
    train, test = (part.sort().values for part in (order[held_out:], order[:held_out]))
    return Dataset("table", pairs.subset(train, "train"), pairs.subset(test, "test"))
