"""Makes suite.py and the other modules here importable by their plain names, as benchmarks/bench_verdict.py does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
