#!/usr/bin/env bash
# PPO on Llama-3-70B, 4 nodes x 8 GPUs:   sbatch slurm/ppo_70b.sh
# 16 nodes x 8 GPUs:                      TRIREME_DECK=inputs/science/ppo_70b_16x8.toml sbatch --nodes=16 slurm/ppo_70b.sh
# See what would run, without a job:      TRIREME_DRY_RUN=1 bash slurm/ppo_70b.sh
# docs/user/batch.md explains requeueing, retries, arrays and chains.
#
# ---- site settings: the only part to change (or: sbatch options, and environment variables of the same names) -------------
#SBATCH --job-name=ppo_70b
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --exclusive
##SBATCH --account=          remove one '#' and fill in, where your center asks for it
##SBATCH --partition=
##SBATCH --qos=
#SBATCH --output=%x-%j.out
# A requeued job goes on writing the same log.
#SBATCH --open-mode=append
#SBATCH --requeue
# Seconds before the walltime: must cover one iteration and one save.
#SBATCH --signal=B:USR1@300
: "${TRIREME_HOME:=${SLURM_SUBMIT_DIR:-$PWD}}"      # folder with build/release/trireme and inputs/
: "${TRIREME_MODULES:=}"                            # e.g. "gcc/13 openmpi/4.1 hdf5/1.14-parallel cuda/13.0"
: "${TRIREME_DECK:=inputs/science/ppo_70b.toml}"
: "${TRIREME_RUN_DIR:=}"                            # on the parallel file system; one folder per run
: "${TRIREME_MODEL:=}"                              # Llama-3-70B-Instruct, Hugging Face layout
: "${TRIREME_REWARD_MODEL:=}"                       # a reward model, Hugging Face layout; it also starts the critic
: "${TRIREME_PROMPTS:=}"                            # JSON lines with "prompt" or "messages"
: "${TRIREME_GPUS_PER_NODE:=8}"                     # 0: run on CPUs
: "${TRIREME_OVERRIDES:=}"                          # more section.key=value, separated by blanks
: "${TRIREME_SWEEP:=}"                              # job arrays: overrides of task 0 | of task 1 | ...
: "${TRIREME_MAX_RESTARTS:=50}"                     # continuations after a walltime warning
: "${TRIREME_MAX_RETRIES:=3}"                       # restarts after a lost rank, a hang or no memory, if steps were made
# ---- nothing site-specific below --------------------------------------------------------------------------------------------
set -euo pipefail
umask "${TRIREME_UMASK:-$(umask)}"

job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}}
job=${job:-${SLURM_JOB_ID:-none}}
run_dir=$TRIREME_RUN_DIR${SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}
program=$TRIREME_HOME/build/release/trireme
nodes=${SLURM_JOB_NUM_NODES:-4}
ranks=${SLURM_NTASKS:-$((nodes * (TRIREME_GPUS_PER_NODE > 0 ? TRIREME_GPUS_PER_NODE : 1)))}
dry_run=${TRIREME_DRY_RUN:-0}

say() { printf '%s  %s\n' "$(date '+%F %T')" "$*"; }

check_settings() {
  local name wrong=()
  [ -x "$program" ] || wrong+=("TRIREME_HOME=$TRIREME_HOME has no build/release/trireme: build it there, or set TRIREME_HOME")
  [ -r "$TRIREME_HOME/$TRIREME_DECK" ] || [ -r "$TRIREME_DECK" ] || wrong+=("TRIREME_DECK=$TRIREME_DECK cannot be read")
  [ -n "$TRIREME_RUN_DIR" ] || wrong+=("TRIREME_RUN_DIR is empty: a folder on the parallel file system for this run")
  for name in TRIREME_MODEL TRIREME_REWARD_MODEL TRIREME_PROMPTS; do
    # The keys that these fill may also stand in the overrides.
    [ -z "${!name}" ] || [ -r "${!name}" ] || wrong+=("$name=${!name} cannot be read")
  done
  if [ "$TRIREME_DECK" = inputs/science/ppo_70b.toml ] || [ "$TRIREME_DECK" = inputs/science/ppo_70b_16x8.toml ]; then
    for name in TRIREME_MODEL TRIREME_REWARD_MODEL TRIREME_PROMPTS; do
      [ -n "${!name}" ] || wrong+=("$name is empty: the deck leaves it to this script")
    done
  fi
  [ ${#wrong[@]} -gt 0 ] || return 0
  printf 'slurm/ppo_70b.sh: %s\n' "${wrong[@]}" >&2
  [ "$dry_run" = 1 ] || exit 78
}

load_modules() {
  [ -n "$TRIREME_MODULES" ] || return 0
  set +u  # module scripts of many sites read unset variables
  # shellcheck disable=SC2086  # one word per module
  module load $TRIREME_MODULES || { set -u; say "module load failed: $TRIREME_MODULES"; exit 69; }
  set -u
}

# [days-][[hours:]minutes:]seconds; nothing for UNLIMITED, NOT_SET, INVALID.
to_seconds() {
  local text=$1 days=0 part total=0
  [[ $text =~ ^([0-9]+-)?[0-9]+(:[0-9]+){0,2}$ ]] || return 0
  if [[ $text == *-* ]]; then days=${text%%-*} text=${text#*-}; fi
  for part in ${text//:/ }; do total=$((total * 60 + 10#$part)); done
  echo $((days * 86400 + total))
}

# Seconds until Slurm ends the job; nothing when there is no limit or nobody says.
seconds_left() {
  if [ -n "${SLURM_JOB_END_TIME:-}" ]; then
    echo $((SLURM_JOB_END_TIME - $(date +%s)))
  elif [ -n "${SLURM_JOB_ID:-}" ]; then
    to_seconds "$(squeue -h -j "$SLURM_JOB_ID" -o %L 2>/dev/null || true)"
  fi
}

newest_step() {
  local step
  step=$(find "$run_dir/ckpt" -maxdepth 1 -name 'step-[0-9]*' 2>/dev/null | sed 's/.*step-0*//' | sort -n | tail -n 1)
  echo "${step:-0}"
}

# What a later reader of the log needs, by a list of what may be shown: never the whole environment.
save_environment() {
  local file=$run_dir/environment-$job.txt
  {
    say "job $job, restart ${SLURM_RESTART_COUNT:-0}, nodes ${SLURM_JOB_NODELIST:-?}"
    env | grep -E '^(SLURM|OMPI|PMIX|PMI|PRTE|UCX|FI|NCCL|CUDA|OMP|MKL|TRIREME)_' | sed -E 's/^([^=]*(TOKEN|KEY|SECRET|PASS)[^=]*)=.*/\1=(hidden)/' | sort
    if command -v module >/dev/null 2>&1; then module list 2>&1; fi
  } >"$file" || true
}

build_launch_line() {
  local left sweep=()
  launch=()
  if command -v srun >/dev/null && srun --mpi=list 2>&1 | grep -q pmix; then
    # -K1: without it a killed rank leaves the others waiting until the walltime.
    launch+=(srun --kill-on-bad-exit=1 --mpi=pmix --cpu-bind=cores)
  else
    launch+=(mpirun -n "$ranks")
  fi
  if [ "$TRIREME_GPUS_PER_NODE" -gt 0 ]; then
    # One GPU per local rank; NCCL finds the network card next to it by itself.
    # shellcheck disable=SC2016  # expanded on the node, by each rank
    launch+=(bash -c 'export CUDA_VISIBLE_DEVICES=${SLURM_LOCALID:-${OMPI_COMM_WORLD_LOCAL_RANK:-0}}; exec "$@"' rank)
  fi
  local deck=$TRIREME_DECK
  [ -r "$deck" ] || deck=$TRIREME_HOME/$TRIREME_DECK
  launch+=("$program" ppo "$deck" "run.dir=$run_dir")
  [ -z "$TRIREME_MODEL" ] || launch+=("model.path=$TRIREME_MODEL")
  [ -z "$TRIREME_REWARD_MODEL" ] || launch+=("reward.source.0.path=$TRIREME_REWARD_MODEL")
  [ -z "$TRIREME_PROMPTS" ] || launch+=("data.prompt_dataset=[\"$TRIREME_PROMPTS\"]")
  left=$(seconds_left)
  [ -z "$left" ] || launch+=("run.walltime=${left}s")
  if [ -n "$TRIREME_SWEEP" ]; then
    IFS='|' read -r -a sweep <<<"$TRIREME_SWEEP"
    TRIREME_OVERRIDES+=" ${sweep[${SLURM_ARRAY_TASK_ID:-0}]:-}"
  fi
  local more=()
  read -r -a more <<<"$TRIREME_OVERRIDES"
  launch+=("${more[@]}")
}

# Comes back in the queue under the same job id; never after scancel, when Slurm no longer calls the job running.
requeue() {
  [ "$(squeue -h -j "$SLURM_JOB_ID" -o %T 2>/dev/null)" = RUNNING ] || { say "the job was cancelled: not requeued"; return; }
  say "requeueing $job: $1"
  scontrol requeue "$job"
}

# Restarts in a row without a clean stop; kept in the run folder, since a requeued job starts with a new shell.
retries_so_far() { cat "$run_dir/.retries" 2>/dev/null || echo 0; }

after() {
  local rc=$1 step retries
  step=$(newest_step)
  retries=$(retries_so_far)
  case $rc in
    0) say "finished at step $step"; rm -f "$run_dir/.retries" ;;
    75)
      rm -f "$run_dir/.retries"
      if [ "$warned" = 1 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "$TRIREME_MAX_RESTARTS" ]; then
        requeue "stopped at step $step before the walltime"
      else
        say "stopped at step $step with a checkpoint: sbatch the same script to go on"
      fi ;;
    70 | 71 | 76 | 137 | 139 | 143)
      if [ "$cancelled" = 1 ]; then
        say "cancelled at step $step"
      elif [ "$step" -le "$first_step" ]; then
        say "exit code $rc without a new checkpoint (step $step): not retried, it would end the same way"
      elif [ "$retries" -ge "$TRIREME_MAX_RETRIES" ]; then
        say "exit code $rc after $retries retries: stopped"
      else
        echo $((retries + 1)) >"$run_dir/.retries"
        requeue "exit code $rc, steps $first_step to $step were made (retry $((retries + 1)) of $TRIREME_MAX_RETRIES)"
      fi ;;
    *) say "exit code $rc: a retry cannot help (docs/user/exit_codes.md)" ;;
  esac
}

check_settings
load_modules
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1} OMPI_MCA_io=${OMPI_MCA_io:-romio321} NCCL_RAS_ENABLE=${NCCL_RAS_ENABLE:-0}
build_launch_line
if [ "$dry_run" = 1 ]; then
  printf 'launch:'; printf ' %q' "${launch[@]}"; printf '\n'
  echo "ranks: $ranks on $nodes nodes; roles: $(sed -n '/^\[ranks\]/,/^\[/{s/^\([a-z]*\) *= */\1=/p}' "$TRIREME_HOME/$TRIREME_DECK" 2>/dev/null | tr '\n' ' ')(empty: all ranks)"
  exit 0
fi

mkdir -p "$run_dir"
save_environment
first_step=$(newest_step)
say "job $job, restart ${SLURM_RESTART_COUNT:-0}: $ranks ranks on $nodes nodes, from step $first_step, in $run_dir"

warned=0 cancelled=0 pid=
# The walltime is near: save, exit 75, come back. TERM is somebody's wish to stop: save, but do not come back.
trap 'warned=1; [ -z "$pid" ] || kill -USR1 "$pid"' USR1
trap 'cancelled=1; [ -z "$pid" ] || kill -USR1 "$pid"' TERM INT
"${launch[@]}" &
pid=$!
# A trapped signal ends `wait` early: wait again as long as the launcher lives.
rc=0
while :; do
  if wait "$pid"; then rc=0; else rc=$?; fi
  [ "$rc" -gt 128 ] && kill -0 "$pid" 2>/dev/null && continue
  break
done
after "$rc"
exit "$rc"
