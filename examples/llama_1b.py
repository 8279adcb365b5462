"""The paper's setting: Llama-3.2-1B models of TOFU by their Hub ids, and methods from the Open-Unlearning collection.

    python examples/llama_1b.py --out runs/llama-1b
    python examples/llama_1b.py --models GradDiff AltPO --offline

Downloads about 2.5 GB for each checkpoint on first use (Llama 3.2 licence), and needs 2.5 GB of GPU memory for the
weights; on a CPU it runs too, slowly. The settings are the preset `paper`: raw prompts, bfloat16, and the last layer as
in the paper's script. The forget set is TOFU's forget10 with its entities.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import uds_lens as ul

FULL = "open-unlearning/tofu_Llama-3.2-1B-Instruct_full"
RETAIN = "open-unlearning/tofu_Llama-3.2-1B-Instruct_retain90"
FORGET = "hf:jaeunglee/uds-annotated-tofu"
UNLEARNED = {
    "retain99": "open-unlearning/tofu_Llama-3.2-1B-Instruct_retain99",
    "retain95": "open-unlearning/tofu_Llama-3.2-1B-Instruct_retain95",
    "GradDiff": "open-unlearning/unlearn_tofu_Llama-3.2-1B-Instruct_forget10_GradDiff_lr2e-05_alpha5_epoch5",
    "AltPO": "open-unlearning/unlearn_tofu_Llama-3.2-1B-Instruct_forget10_AltPO_lr5e-05_beta0.1_alpha1_epoch10",
}
"""The two other retain models must land between 0 and 1, in this order: a check of the scale before the methods."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(UNLEARNED), default=list(UNLEARNED))
    parser.add_argument("--examples", default=FORGET, help=f"forget set with entities; default {FORGET}")
    parser.add_argument("--limit", type=int, help="only the first examples, to try it")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--offline", action="store_true", help="use only files already downloaded")
    parser.add_argument("--out", type=Path, default=Path("runs/llama-1b"))
    asked = parser.parse_args()

    examples = ul.load_examples(asked.examples, limit=asked.limit)
    config, options = ul.AuditConfig.preset("paper"), ul.RunOptions(device=asked.device, offline=asked.offline)
    baseline = ul.Baseline.measure(FULL, RETAIN, examples, config=config, options=options)
    baseline.save(asked.out / "baseline")
    audits = {}
    for name in asked.models:
        audits[name] = baseline.audit(UNLEARNED[name], options=options)
        audits[name].save(asked.out / name)
        print(f"{name}: {audits[name]!r}", flush=True)
    print(ul.results.models_frame(audits).round(3).to_string(index=False))
    print("page:", ul.report.write(audits, asked.out / "report.html"))


if __name__ == "__main__":
    main()
