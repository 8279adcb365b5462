#!/usr/bin/env bash
# A sweep of audits on Slurm: the baseline once, one task per model, then table and page.
#
#   FULL=ckpt/full RETAIN=ckpt/retain examples/slurm_array.sh models.txt forget10.json runs/sweep
#
# Run it on the login node: it submits three jobs that wait for each other. models.txt has one checkpoint per line.
# Send it again after a failure: what is done is not measured again. Settings by environment:
#   PYTHON (python), GPUS (gpu:1), TIME (01:00:00), MEMORY (32G), PARALLEL (8), EXTRA (more options of sbatch)
# DRY_RUN=1 prints the commands instead of submitting them.
set -euo pipefail

if [[ ${1:-} == -h || ${1:-} == --help || $# -ne 3 ]]; then
  sed -n '2,10s/^# \{0,1\}//p' "$0"
  [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0 || exit 2
fi
models=$1 examples=$2 out=$3
: "${FULL:?set FULL to the model trained on everything}" "${RETAIN:?set RETAIN to the model that never saw the forget set}"
step="${PYTHON:-python} $(cd "$(dirname "$0")" && pwd)/slurm_array.py"
count=$(grep -cvE '^[[:space:]]*(#|$)' "$models" || true)
[[ $count -gt 0 ]] || { echo "$models lists no checkpoint" >&2; exit 2; }
mkdir -p "$out/logs"

submit() {  # submit NAME OPTION... -- COMMAND: prints the number of the job
  local name=$1 options=()
  shift
  while [[ $1 != -- ]]; do options+=("$1"); shift; done
  shift
  # shellcheck disable=SC2206 # EXTRA holds several options
  local all=(--parsable --kill-on-invalid-dep=yes --job-name="uds-$name" --output="$out/logs/%x-%A_%a.log" --time="${TIME:-01:00:00}" --mem="${MEMORY:-32G}" ${EXTRA:-} "${options[@]}" --wrap="$*")
  if [[ -n ${DRY_RUN:-} ]]; then
    printf 'sbatch' >&2; printf ' %q' "${all[@]}" >&2; echo >&2; echo "<$name>"
  else
    sbatch "${all[@]}"
  fi
}

printf -v quoted '%q ' --out "$out"
printf -v trio '%q ' --full "$FULL" --retain "$RETAIN" --examples "$examples"
printf -v list '%q ' --models "$models"
first=$(submit baseline --gres="${GPUS:-gpu:1}" -- "$step baseline $trio$quoted")
array=$(submit audit --gres="${GPUS:-gpu:1}" --array="0-$((count - 1))%${PARALLEL:-8}" --dependency="afterok:$first" -- "$step audit $list$quoted--task \$SLURM_ARRAY_TASK_ID")
submit collect --dependency="afterany:$array" -- "$step collect $quoted" >/dev/null
echo "$count models; logs in $out/logs"
