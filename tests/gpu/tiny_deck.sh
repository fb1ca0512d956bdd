#!/usr/bin/env bash
# The tiny tutorial on GPUs: sft from random weights, PPO from its result, PPO again from its checkpoint, and the tools with the result.
#   tests/gpu/tiny_deck.sh PROGRAM LAUNCHER...
# TRIREME_TINY_DEVICE=cpu rehearses it where there is no GPU.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
program=$1
shift
device=${TRIREME_TINY_DEVICE:-cuda}
if [ "$device" = cuda ] && [ ! -e /dev/nvidiactl ] && ! nvidia-smi -L >/dev/null 2>&1; then
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

"$@" "$program" sft inputs/tutorial/tiny-sft.toml "run.device=$device" run.iterations=5 "run.dir=$folder/sft"
finite "$folder/sft/metrics.jsonl" loss 5
[ "$device" = cpu ] || grep -q -E 'NCCL ring|staged through host memory' "$folder/sft/log.txt" || { echo "the model did not live on a GPU"; exit 1; }

ppo=("$@" "$program" ppo inputs/tutorial/tiny.toml "run.device=$device" "model.path=$folder/sft/hf" rollout.batch_size=8 train.batch_size=16)
"${ppo[@]}" "run.dir=$folder/ppo" run.iterations=2
finite "$folder/ppo/metrics.jsonl" reward 2
"${ppo[@]}" "run.dir=$folder/ppo" run.iterations=3
finite "$folder/ppo/metrics.jsonl" grad_norm 3

# Each rank a replica of its own, whose weights are compared.
"${ppo[@]}" run.iterations=2 train.shard_group=1 train.replica_check=1 "run.dir=$folder/replicas"
finite "$folder/replicas/metrics.jsonl" reward 2

# Two answers, their log-probabilities as generate and as score give them.
printf '%s\n' '{"prompt": "1+2="}' '{"prompt": "12+30="}' >"$folder/prompts.jsonl"
"$@" "$program" generate --device "$device" --model "$folder/sft/hf" --input "$folder/prompts.jsonl" --output "$folder/answers.jsonl" --max-new-tokens 8 --log-probs
finite "$folder/answers.jsonl" index 2
grep -q -E '"log_probs": ?\[-?[0-9]' "$folder/answers.jsonl" || { echo "generate gave no log-probabilities"; cat "$folder/answers.jsonl"; exit 1; }
printf '%s\n' '{"text": "1+2=3"}' '{"text": "12+30=42"}' >"$folder/texts.jsonl"
"$@" "$program" score --device "$device" --model "$folder/sft/hf" --input "$folder/texts.jsonl" --output "$folder/scores.jsonl"
finite "$folder/scores.jsonl" index 2
grep -q -E '"log_probs": ?\[-?[0-9]' "$folder/scores.jsonl" || { echo "score gave no log-probabilities"; cat "$folder/scores.jsonl"; exit 1; }
