"""Peak memory of an audit against that of loading `full` alone, each in a process of its own.

python benchmarks/memory_cost.py --shared ../shared
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from workloads import Proportions, random_llama, shared_parser

_LOAD = """
import sys, uds_lens as ul
ul.open_model(sys.argv[1], device="cpu")
"""

_AUDIT = """
import sys, uds_lens as ul
examples = ul.load_examples(sys.argv[4], limit=int(sys.argv[5]), sample="first")
config, options = ul.AuditConfig(), ul.RunOptions(progress=False, device="cpu")
print(ul.DepthAudit.run(*sys.argv[1:4], examples, config=config, options=options).provenance["engine"])
"""

_PEAK = """
import resource
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(code: str, *arguments: object) -> tuple[int, str]:
    """Peak resident memory of a Python process in bytes, and what it printed before."""
    done = subprocess.run(
        [sys.executable, "-c", code + _PEAK, *map(str, arguments)], check=True, capture_output=True, text=True
    )
    *said, kib = done.stdout.split()
    return int(kib) * 1024, " ".join(said)


def main() -> None:
    """Make a model, measure both, print Markdown."""
    parser = shared_parser(__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=1024)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        load = random_llama(
            args.shared, Path(folder), args.rows, Proportions.small(args.layers, args.width, 32_000), name="memory"
        )
        size = sum(file.stat().st_size for file in load.full.glob("*.safetensors"))
        data = args.shared / "data" / "tofu" / "forget10_filtered.json"
        alone, _ = peak(_LOAD, load.full)
        audit, engine = peak(_AUDIT, load.full, load.retain, load.unlearned, data, args.rows)
    gib = 1 << 30
    print("| weights, GiB | loading full alone | whole audit | ratio | engine |\n|---|---|---|---|---|")
    print(f"| {size / gib:.2f} | {alone / gib:.2f} | {audit / gib:.2f} | {audit / alone:.2f} | {engine} |")


if __name__ == "__main__":
    main()
