"""What makes files of this repository: `python -m scripts.reference`, `python scripts/make_embedded_dataset.py`."""
