"""Run the tests that train as on other processors (`make test-numerics`): no verdict hangs on where they land.

A setting is a processor and a number of threads, for example `avx2:2`; `own` is the processor as it is.
"""

import os
import subprocess
import sys
import time

import torch

TRAINING = [
    "tests/cli/test_unlearn.py",
    "tests/compat/test_peft.py",
    "tests/compat/test_transformers_trainer.py",
    "tests/elicitation/test_optimised.py",
    "tests/metrics/test_fisher.py",
    "tests/study/test_model_runner.py",
    "tests/study/test_relearn_grid.py",
    *(
        f"tests/test_docs.py::test_a_page_runs_from_top_to_bottom[docs/guide/{page}.md]"
        for page in ("making", "training", "unlearning")
    ),
    "tests/toy/test_build.py",
    "tests/training",
    "tests/unlearning",
    "uds_lens/unlearning",
]
AS_ON = {
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
    # with neither bfloat16 nor AMX
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_CBWR": "AVX512"},
    "own": {},
}
SETTINGS = [f"{processor}:{threads}" for processor in AS_ON for threads in (1, 2)]


def passes(setting: str) -> bool:
    """Run the tests under a setting; one that this processor cannot do passes."""
    processor, threads = setting.split(":")
    can = ["default", "avx2", "avx512"]
    own = torch.backends.cpu.get_cpu_capability().lower()
    if processor in can[can.index(own) + 1 if own in can else 1 :]:
        print(f"== {setting}: not on this processor ({own})")
        return True
    # Two threads that wait for each other on a busy core would spin.
    given = {**AS_ON[processor], "OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "passive"}
    begun = time.monotonic()
    pytest = [sys.executable, "-m", "pytest", "-n", "auto", "--maxprocesses", "4", "--dist", "worksteal"]
    pytest += ["-m", "", "-k", "not joint_processes"]  # long ones too
    code = subprocess.run([*pytest, *TRAINING], env={**os.environ, **given}, check=False).returncode
    print(f"== {setting}: {'failed' if code else 'passed'} in {time.monotonic() - begun:.0f} s", flush=True)
    return not code


if __name__ == "__main__":
    passed = [passes(setting) for setting in sys.argv[1:] or SETTINGS]
    sys.exit(not all(passed))
