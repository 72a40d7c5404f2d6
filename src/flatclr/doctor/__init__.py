"""What is wrong with a run, what it costs, and what to change: findings from its metrics, embeddings and settings."""

from flatclr.doctor.diagnosis import Diagnosis, Finding
from flatclr.doctor.examination import examine

__all__ = ["Diagnosis", "Finding", "examine"]
