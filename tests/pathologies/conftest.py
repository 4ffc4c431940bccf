"""Lets the tests here import the table of labels beside them by its plain name, as benchmarks/bench_verdict.py does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
