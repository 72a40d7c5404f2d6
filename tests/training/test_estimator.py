"""`ContrastiveEncoder` keeps scikit-learn's conventions, and learns what two tables share."""

from __future__ import annotations

import numpy as np
import pytest

import flatclr

pytest.importorskip("sklearn")
SMALL = {"components": 4, "width": 32, "batch_size": 64, "learning_rate": 3e-3}


def tables(rows: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(rows, 3))
    mixing = np.random.default_rng(7)
    sides = [shared @ mixing.normal(size=(3, d)) + 0.05 * rng.normal(size=(rows, d)) for d in (6, 5)]
    return 100 * sides[0] + 3, sides[1]


def test_rows_find_their_partners_in_new_tables() -> None:
    encoder = flatclr.ContrastiveEncoder(epochs=40, **SMALL).fit(*tables())
    X, Y = tables(100, seed=1)

    assert encoder.score(X, Y) > 0.5  # by chance 0.01
    np.testing.assert_allclose(np.linalg.norm(encoder.transform(X), axis=1), 1)
    assert encoder.metrics_["retrieval_at_1"] > 0.5
    assert encoder.n_features_in_ == 6


def test_a_fit_depends_on_its_random_state_alone() -> None:
    X, Y = tables(60)
    first, again, other = (
        flatclr.ContrastiveEncoder(epochs=1, random_state=seed, **SMALL).fit(X, Y).transform(X) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_it_is_a_step_of_a_pipeline() -> None:
    from sklearn.base import clone
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, Y = tables(60)
    encoder = flatclr.ContrastiveEncoder(epochs=1, **SMALL)
    found = make_pipeline(StandardScaler(), clone(encoder)).fit(X, Y).transform(X)
    assert found.shape == (60, 4)


def test_bad_tables_are_refused() -> None:
    X, Y = tables(60)
    with pytest.raises(ValueError, match="y must be the other table, got None"):
        flatclr.ContrastiveEncoder().fit(X)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        flatclr.ContrastiveEncoder().fit(X, Y[:30])
    with pytest.raises(ValueError, match="minimum of 8 is required"):
        flatclr.ContrastiveEncoder().fit(X[:5], Y[:5])
    encoder = flatclr.ContrastiveEncoder(epochs=1, **SMALL).fit(X, Y)
    with pytest.raises(ValueError, match="Y must have 5 columns, got 2"):
        encoder.transform_y(Y[:, :2])


@pytest.mark.slow
def test_scikit_learn_s_own_checks_pass() -> None:
    from sklearn.utils.estimator_checks import check_estimator

    encoder = flatclr.ContrastiveEncoder(components=2, width=8, epochs=2, batch_size=16)
    done = check_estimator(encoder, on_fail=None, on_skip=None)
    assert [check["check_name"] for check in done if check["status"] == "failed"] == []
