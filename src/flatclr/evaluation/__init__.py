"""How good an encoder is: protocols that are fixed, versioned, and never select on test data.

`evaluate` runs them on a run, an encoder or any module; the functions that they are made of take features.
"""

from flatclr.evaluation.classifier import FinetunedClassifier, finetune, load_classifier
from flatclr.evaluation.embedding import Embeddings, embed
from flatclr.evaluation.evaluator import evaluate
from flatclr.evaluation.intervals import Score
from flatclr.evaluation.knn import knn_accuracy, knn_predict, knn_votes
from flatclr.evaluation.linear import LinearClassifier, LinearProbe, fit_linear, fit_probe
from flatclr.evaluation.pool_mi import pool_mi_nats
from flatclr.evaluation.protocols import PROTOCOLS
from flatclr.evaluation.results import Evaluation, Row, markdown_table, read_results
from flatclr.evaluation.retrieval import Retrieval, retrieve
from flatclr.evaluation.search import Nearest, Pair, duplicates, nearest, outlier_scores

__all__ = [
    "PROTOCOLS",
    "Embeddings",
    "Evaluation",
    "FinetunedClassifier",
    "LinearClassifier",
    "LinearProbe",
    "Nearest",
    "Pair",
    "Retrieval",
    "Row",
    "Score",
    "duplicates",
    "embed",
    "evaluate",
    "finetune",
    "fit_linear",
    "fit_probe",
    "knn_accuracy",
    "knn_predict",
    "knn_votes",
    "load_classifier",
    "markdown_table",
    "nearest",
    "outlier_scores",
    "pool_mi_nats",
    "read_results",
    "retrieve",
]
