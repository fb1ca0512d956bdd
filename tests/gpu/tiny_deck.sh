#!/usr/bin/env bash
# The tiny tutorial on GPUs: sft from random weights, PPO from its result, and PPO again from its checkpoint.
#   tests/gpu/tiny_deck.sh PROGRAM LAUNCHER...
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
program=$1
shift
if [ ! -e /dev/nvidiactl ] && ! nvidia-smi -L >/dev/null 2>&1; then
  echo "skipped: this machine has no NVIDIA driver"
  exit 125
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Every line of the metrics has this field, and all are finite.
finite() {
  local file=$1 field=$2 lines=$3
  [ "$(wc -l <"$file")" = "$lines" ] || { echo "$file has not $lines lines"; cat "$file"; exit 1; }
  [ "$(grep -c -E "\"$field\": ?-?[0-9]" "$file")" = "$lines" ] || { echo "$field is missing or not finite in $file"; cat "$file"; exit 1; }
}

"$@" "$program" sft inputs/tutorial/tiny-sft.toml run.device=cuda run.iterations=5 "run.dir=$folder/sft"
finite "$folder/sft/metrics.jsonl" loss 5
grep -q -E 'NCCL ring|staged through host memory' "$folder/sft/log.txt" || { echo "the model did not live on a GPU"; exit 1; }

ppo=("$@" "$program" ppo inputs/tutorial/tiny.toml run.device=cuda "model.path=$folder/sft/hf" "run.dir=$folder/ppo" rollout.batch_size=8 train.batch_size=16)
"${ppo[@]}" run.iterations=2
finite "$folder/ppo/metrics.jsonl" reward 2
"${ppo[@]}" run.iterations=3
finite "$folder/ppo/metrics.jsonl" grad_norm 3
