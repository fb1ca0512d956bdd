# shellcheck shell=bash
# What slurm/selftest.sh and pbs/selftest.pbs do on the nodes of a job, by the script that runs everything else there (docs/user/selftest.md).
# Takes: TRIREME_HOME; batch_script, the path of that script; job, the job's number; its nodes and ranks; restart, how often it came back.
#
# Each part is one run in a folder of its own under TRIREME_SELFTEST_DIR, with its output beside it and its row of the result in NAME.json. A job that
# comes back goes on with the parts that have no row.
: "${TRIREME_SELFTEST_DIR:=}"                       # a new folder on the parallel file system
: "${TRIREME_SELFTEST_SHAPE:=inputs/selftest/shape}" # 0.6 billion parameters; inputs/tutorial/tiny-model for a try on a laptop
: "${TRIREME_SELFTEST_PARTS:=program learning killed requeued}"  # those to do, in this order; the last one compares with the second
export TRIREME_SELFTEST_DIR TRIREME_SELFTEST_SHAPE TRIREME_SELFTEST_PARTS
: "${TRIREME_HOME:?}" "${batch_script:?}" "${job:?}" "${nodes:?}" "${ranks:?}" "${restart:?}"

parts=$TRIREME_SELFTEST_PARTS
root=$TRIREME_SELFTEST_DIR
killed_limit=10                      # seconds from a rank's death to the end of the job's ranks
tolerance=1e-3                       # of what an iteration says, beside the stored numbers; rounding alone is below 1e-4
compared="reward policy_loss entropy grad_norm response_length"

say() { printf '%s  %s\n' "$(date '+%F %T')" "$*"; }

# Text as a JSON string.
quoted() { printf '"%s"' "$(printf '%s' "$1" | sed -e 's/\\/\\\\/g; s/"/\\"/g' | tr '\n\t' '  ')"; }

# row PART VERDICT NAME VALUE ...: numbers, true, false and null as they are, all else as text.
row() {
  local part=$1 text
  text="{\"part\":\"$part\",\"verdict\":\"$2\""
  say "$part: $2${3:+ (${*:3})}"
  shift 2
  while [ $# -ge 2 ]; do
    if [[ $2 =~ ^(-?[0-9.]+([eE][-+]?[0-9]+)?|true|false|null)$ ]]; then text+=",\"$1\":$2"; else text+=",\"$1\":$(quoted "$2")"; fi
    shift 2
  done
  printf '%s}\n' "$text" >"$root/.$part.json"
  mv "$root/.$part.json" "$root/$part.json"
}

# run PART COMMAND OVERRIDES: by the batch script, as any job; its exit code in rc.
run() {
  rc=0
  TRIREME_RUN_DIR=$root/$1 TRIREME_COMMAND=$2 TRIREME_DECK=$root/$1.toml TRIREME_OVERRIDES=$3 TRIREME_MODEL='' TRIREME_REWARD_MODEL='' TRIREME_PROMPTS='' \
    TRIREME_SWEEP='' TRIREME_MAX_RETRIES=0 bash "$batch_script" >>"$root/$1.log" 2>&1 || rc=$?
}

# deck PART FAULTS: grpo.toml with these injected faults. srun ends the other ranks of one that was killed by a signal that asks for a last save, which waits for
# the dead rank as long as run.term_grace says.
deck() {
  {
    sed "s|\"inputs/|\"$TRIREME_HOME/inputs/|" "$TRIREME_HOME/inputs/selftest/grpo.toml" |  # a job may run elsewhere
      sed "s/^\[run\]$/[run]\nterm_grace = 5/"
    [ -z "$2" ] || printf '\n[fault]\nat = [%s]\n' "$2"
  } >"$root/$1.toml"
}

# values RUN KEY: of each iteration, as metrics.jsonl has them.
values() {
  awk -v key="\"$2\": " '{ at = index($0, key); text = at ? substr($0, at + length(key)) : "absent"; sub(/[,}].*/, "", text); print text }' "$root/$1/metrics.jsonl"
}

# The last lines of a part's output, for its row.
tail_of() { grep -v '^[[:space:]]*$' "$root/$1.log" 2>/dev/null | tail -n 3 || true; }

program_part() {
  local line
  run program selftest "--folder $root/program --device $([ "${TRIREME_GPUS_PER_NODE:-8}" = 0 ] && echo cpu || echo cuda)"
  line=$(grep -o '{"selftest".*}' "$root/program.log" | tail -n 1 || true)
  if [ "$rc" = 0 ]; then row program passed seconds "$SECONDS"; else row program failed exit_code "$rc" problem "$(tail_of program)"; fi
  [ -z "$line" ] || printf '%s\n' "$line" >"$root/program-line.json"
}

# The largest error of the run's numbers, relative to the stored ones and at least to a hundredth of the column's largest; "KEY of iteration N is A, not B" behind it.
error_of() {
  local key
  for key in $compared; do
    paste <(awk -v key="$key" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == key) column = i; next } { print $column }' "$expected") <(values learning "$key") |
      awk -v key="$key" '{ want[NR] = $1; have[NR] = $2; size = $1 < 0 ? -$1 : $1; if (size > most) most = size }
        END { for (i = 1; i <= NR; i++) { size = want[i] < 0 ? -want[i] : want[i]; if (size < most / 100) size = most / 100
                error = have[i] ~ /^-?[0-9]/ && want[i] != "" ? have[i] - want[i] : 1e9; if (error < 0) error = -error
                printf "%.3g %s of iteration %d is %s, stored %s\n", (size > 0 ? error / size : error), key, i, have[i], want[i] } }'
  done | sort -g | tail -n 1
}

learning_part() {
  local largest sync speed bound
  deck learning ''
  run learning ppo "model.shape=$shape"
  if [ "$rc" != 0 ]; then row learning failed exit_code "$rc" problem "$(tail_of learning)"; return; fi
  sync=$(tail -n 1 "$root/learning/metrics.jsonl" | grep -o '"weight_sync": {[^}]*}' || true)
  speed=$(sed -n 's/.*"gb_per_second": \([^,}]*\).*/\1/p' <<<"$sync")
  bound=$(sed -n 's/.*"over_bound": \([^,}]*\).*/\1/p' <<<"$sync")
  if [ ! -r "$expected" ]; then
    row learning "not compared" problem "$expected: no numbers are stored for this shape" sync_gb_per_second "${speed:-null}" sync_over_bound "${bound:-null}"
    return
  fi
  largest=$(error_of)
  if awk -v error="${largest%% *}" -v most="$tolerance" 'BEGIN { exit !(error <= most) }'; then
    row learning passed largest_error "${largest%% *}" sync_gb_per_second "${speed:-null}" sync_over_bound "${bound:-null}"
  else
    row learning failed problem "${largest#* }: more than $tolerance apart" largest_error "${largest%% *}" sync_gb_per_second "${speed:-null}" sync_over_bound "${bound:-null}"
  fi
}

# The last rank dies in its second iteration; the file tells when.
killed_part() {
  local victim=$((ranks - 1)) died seconds
  rm -rf "$root/killed"              # of a start that was ended by something else
  deck killed "\"open:$victim:actor step:2:1\", \"kill:$victim:actor step:2\""
  run killed ppo "model.shape=$shape"
  seconds=$(date +%s.%N)
  died=$(stat -c %.Y "$root/killed/.gate-1" 2>/dev/null || true)
  if [ -z "$died" ]; then row killed failed exit_code "$rc" problem "the rank was not killed: $(tail_of killed)"; return; fi
  seconds=$(awk -v died="$died" -v now="$seconds" 'BEGIN { printf "%.1f", now - died }')
  case $rc in
    0 | 64 | 65 | 66 | 73 | 75 | 78) row killed failed exit_code "$rc" problem "a lost rank must end the job with another code" seconds "$seconds" ;;
    *)
      if awk -v s="$seconds" -v most="$killed_limit" 'BEGIN { exit !(s <= most) }'; then row killed passed seconds "$seconds" exit_code "$rc"
      else row killed failed seconds "$seconds" exit_code "$rc" problem "more than $killed_limit s"; fi ;;
  esac
}

# Stopped by a signal in iteration 6, as before a walltime. The batch script puts the job back into the queue, or its successor; where the site allows neither,
# the second half runs in this job.
requeued_part() {
  local key how="the job came back" differing=''
  if [ ! -e "$root/requeued.toml" ]; then
    deck requeued '"signal:*:actor step:6:10"'
    run requeued ppo "model.shape=$shape"
    if [ "$rc" != 75 ]; then row requeued failed exit_code "$rc" problem "exit code 75 was expected: $(tail_of requeued)"; return; fi
    if grep -q '  submitted ' "$root/requeued.log"; then say "the rest is the successor's: $(grep '  submitted ' "$root/requeued.log" | tail -n 1)"; exit 75; fi
    sleep 30                         # Slurm takes a moment to end a job that it has requeued
    say "the job was not requeued: going on in this one"
    touch "$root/.same-job"
  fi
  run requeued ppo "model.shape=$shape"
  [ ! -e "$root/.same-job" ] || how="in the same job: $(grep -E 'requeue|qsub|SUCCESSOR' "$root/requeued.log" | tail -n 1)"
  if [ "$rc" != 0 ]; then row requeued failed exit_code "$rc" problem "$(tail_of requeued)" how "$how"; return; fi
  for key in $compared kl tokens lr; do
    [ "$(values learning "$key")" = "$(values requeued "$key")" ] || differing+=" $key"
  done
  if [ -z "$differing" ]; then row requeued passed how "$how"
  elif [ "${TRIREME_GPUS_PER_NODE:-8}" != 0 ] && [ -z "$(nearly_equal)" ]; then row requeued passed how "$how" bits "differ on GPUs, within $tolerance"
  else row requeued failed how "$how" problem "not the numbers of a run without a stop:$differing"; fi
}

# Nothing where the two runs' numbers are within the tolerance; the key where not.
nearly_equal() {
  local key
  for key in $compared; do
    paste <(values learning "$key") <(values requeued "$key") |
      awk -v key="$key" -v most="$tolerance" '{ d = $1 - $2; if (d < 0) d = -d; s = $1 < 0 ? -$1 : $1; if (d > most * (s > 0.01 ? s : 0.01)) { print key; exit } }'
  done
}

finish() {
  local part verdict=passed text='' missing='' program=$TRIREME_HOME/build/release/trireme
  [ -x "$program" ] || program=$TRIREME_HOME/../../bin/trireme  # installed
  for part in $parts; do
    if [ -r "$root/$part.json" ]; then
      text+="${text:+,}$(cat "$root/$part.json")"
      grep -q '"verdict":"passed"' "$root/$part.json" || verdict=failed
    else
      missing=1
    fi
  done
  [ -z "$missing" ] || verdict=failed
  {
    printf '{"selftest":"%s","cluster":%s,"job":"%s","nodes":%s,"ranks":%s,"shape":%s,"version":%s,"parts":[%s]' "$verdict" \
      "$(quoted "${SLURM_CLUSTER_NAME:-$(hostname -d 2>/dev/null || true)}")" "$job" "$nodes" "$ranks" "$(quoted "$TRIREME_SELFTEST_SHAPE")" \
      "$(quoted "$("$program" --version 2>/dev/null | head -n 1)")" "$text"
    [ ! -r "$root/program-line.json" ] || printf ',"program":%s' "$(cat "$root/program-line.json")"
    printf '}\n'
  } >"$root/selftest.json"
  cat "$root/selftest.json"
  say "self-test: $verdict; $root/selftest.json is what to send (docs/user/selftest.md)"
  [ "$verdict" = passed ] || exit 70
}

if [ -z "$root" ]; then echo "TRIREME_SELFTEST_DIR is empty: a new folder on the parallel file system" >&2; exit 78; fi
shape=$TRIREME_SELFTEST_SHAPE
[[ $shape = /* ]] || shape=$TRIREME_HOME/$shape
expected=$TRIREME_HOME/inputs/selftest/expected-$(basename "$TRIREME_SELFTEST_SHAPE").txt
mkdir -p "$root"
if [ "$restart" = 0 ] && ls "$root"/*.json >/dev/null 2>&1; then echo "TRIREME_SELFTEST_DIR=$root has results of another self-test: name a new folder" >&2; exit 73; fi
for part in $parts; do
  [ -r "$root/$part.json" ] || { SECONDS=0; "${part}_part"; }
done
finish
