"""pfl-research's CIFAR-10 benchmark on one GPU; see fedpers/bench/gpu.py for what it is.

python benchmarks/gpu_cifar.py [--rounds 1500] [--data FOLDER]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fedpers.bench.gpu import main

if __name__ == "__main__":
    main(sys.argv[1:])
