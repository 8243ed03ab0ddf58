import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # the ranks import rank_workers from here too
