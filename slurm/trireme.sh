#!/usr/bin/env bash
# Runs trireme under Slurm: any subcommand, any deck. slurm/ppo_70b.sh is the same file.
# PPO on Llama-3-70B, 4 nodes x 8 GPUs:   sbatch slurm/ppo_70b.sh
# SFT on one node:                        TRIREME_COMMAND=sft TRIREME_DECK=my.toml sbatch --nodes=1 slurm/trireme.sh
# 16 nodes x 8 GPUs:                      TRIREME_DECK=inputs/science/ppo_70b_16x8.toml sbatch --nodes=16 slurm/ppo_70b.sh
# See what would run, without a job:      TRIREME_DRY_RUN=1 bash slurm/ppo_70b.sh
# docs/user/batch.md explains requeueing, retries, arrays and chains.
#
# ---- site settings: the only part to change (or: sbatch options, and environment variables of the same names) -------------
#SBATCH --job-name=trireme
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --exclusive
# All memory of the nodes: --exclusive alone leaves a job the site's default per core.
#SBATCH --mem=0
##SBATCH --account=          remove one '#' and fill in, where your center asks for it
##SBATCH --partition=
##SBATCH --qos=
#SBATCH --output=%x-%j.out
# A requeued job goes on writing the same log.
#SBATCH --open-mode=append
#SBATCH --requeue
# Seconds before the walltime: must cover one iteration and one save.
#SBATCH --signal=B:USR1@300
: "${TRIREME_HOME:=${SLURM_SUBMIT_DIR:-$PWD}}"      # folder with build/release/trireme and inputs/, or PREFIX/share/trireme
: "${TRIREME_MODULES:=}"                            # e.g. "gcc/13 openmpi/4.1 hdf5/1.14-parallel cuda/13.0"
: "${TRIREME_COMMAND:=ppo}"                         # ppo, sft, rm or dpo; or another subcommand, with TRIREME_OVERRIDES as its arguments
[ "$TRIREME_COMMAND" != ppo ] || : "${TRIREME_DECK:=inputs/science/ppo_70b.toml}"
: "${TRIREME_DECK:=}"                               # the deck; of ppo: inputs/science/ppo_70b.toml
: "${TRIREME_RUN_DIR:=}"                            # on the parallel file system; one folder per run
: "${TRIREME_MODEL:=}"                              # model.path: a folder in Hugging Face layout
: "${TRIREME_REWARD_MODEL:=}"                       # ppo: a reward model, Hugging Face layout; it also starts the critic
: "${TRIREME_PROMPTS:=}"                            # data.prompt_dataset of ppo, data.dataset of sft, rm and dpo: JSON lines
: "${TRIREME_GPUS_PER_NODE:=8}"                     # 0: run on CPUs
: "${TRIREME_GPU_ORDER:=}"                          # GPU of local rank 0, 1, ... e.g. "3 2 1 0"; empty: its own number
: "${TRIREME_NICS:=}"                               # network card of local rank 0, 1, ... e.g. "mlx5_0 mlx5_1"; empty: MPI and NCCL choose
: "${TRIREME_THREADS_PER_RANK:=}"                   # cores that a rank is bound to, one thread on each; empty: --cpus-per-task
: "${TRIREME_MPI:=}"                                # srun's --mpi=, or "mpirun"; empty: srun with pmix where Slurm has it, else mpirun
: "${TRIREME_MPI_OPTIONS:=}"                        # more options of the launcher, separated by blanks
: "${TRIREME_OVERRIDES:=}"                          # more section.key=value, separated by blanks; a value may hold blanks
: "${TRIREME_SWEEP:=}"                              # job arrays: overrides of task 0 | of task 1 | ...
: "${TRIREME_MAX_RESTARTS:=50}"                     # continuations after the walltime
: "${TRIREME_MAX_RETRIES:=3}"                       # restarts in a row without a new checkpoint, after a lost rank, a hang or no memory
: "${TRIREME_RETRY_PAUSE:=60}"                      # seconds before the one new try after exit code 69 or 74 (environment, input and output)
: "${TRIREME_LOCK_WAIT:=120}"                       # seconds to wait for the ranks of an earlier job that are still ending
: "${TRIREME_LAUNCHER_GRACE:=60}"                   # seconds that the launcher may take to end when the ranks of this node are gone
# ---- nothing site-specific below --------------------------------------------------------------------------------------------
set -euo pipefail

# First of all: a signal that comes while the modules load must not end this shell.
stopped='' pid='' interrupted=0 rc=143
trap on_warning USR1
trap on_term TERM INT

umask "${TRIREME_UMASK:-$(umask)}"
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}}
job=${job:-${SLURM_JOB_ID:-none}}
restart=${SLURM_RESTART_COUNT:-0}   # not set in a first run
task=${SLURM_ARRAY_TASK_ID:-}
run_dir=$TRIREME_RUN_DIR${task:+-$task}
program=$TRIREME_HOME/build/release/trireme
[ -x "$program" ] || [ ! -x "$TRIREME_HOME/../../bin/trireme" ] || program=$TRIREME_HOME/../../bin/trireme   # installed: PREFIX/share/trireme
deck=$TRIREME_DECK
[ -r "$deck" ] || deck=$TRIREME_HOME/$TRIREME_DECK
nodes=${SLURM_JOB_NUM_NODES:-4}
dry_run=${TRIREME_DRY_RUN:-0}

say() { printf '%s  %s\n' "$(date '+%F %T')" "$*"; }

# ppo, sft, rm and dpo have a deck and a run folder; other subcommands get TRIREME_OVERRIDES as their arguments.
takes_deck() { case $TRIREME_COMMAND in ppo | sft | rm | dpo) ;; *) return 1 ;; esac; }
data_key() { if [ "$TRIREME_COMMAND" = ppo ]; then echo data.prompt_dataset; else echo data.dataset; fi; }

settings=0                           # exit code of what is wrong with them
check_settings() {
  local name wrong=()
  [ -x "$program" ] || wrong+=("TRIREME_HOME=$TRIREME_HOME has no build/release/trireme: build it there, or set TRIREME_HOME (of an installation: PREFIX/share/trireme)")
  if takes_deck; then
    [ -f "$deck" ] && [ -r "$deck" ] || wrong+=("TRIREME_DECK=$TRIREME_DECK is not a file that can be read: name the deck of TRIREME_COMMAND=$TRIREME_COMMAND")
    [ "$TRIREME_COMMAND" = ppo ] || [ -z "$TRIREME_REWARD_MODEL" ] || wrong+=("TRIREME_REWARD_MODEL is for TRIREME_COMMAND=ppo, not $TRIREME_COMMAND")
  fi
  [ -n "$TRIREME_RUN_DIR" ] || wrong+=("TRIREME_RUN_DIR is empty: a folder on the parallel file system for this run")
  for name in TRIREME_GPUS_PER_NODE TRIREME_THREADS_PER_RANK TRIREME_MAX_RESTARTS TRIREME_MAX_RETRIES TRIREME_RETRY_PAUSE TRIREME_LOCK_WAIT TRIREME_LAUNCHER_GRACE; do
    [[ ${!name} =~ ^[0-9]+$ ]] || wrong+=("$name=${!name} is not a number")
  done
  for name in TRIREME_MODEL TRIREME_REWARD_MODEL TRIREME_PROMPTS; do
    # The keys that these fill may also stand in the overrides.
    [ -z "${!name}" ] || [ -r "${!name}" ] || wrong+=("$name=${!name} cannot be read")
  done
  if [[ $TRIREME_DECK == inputs/science/ppo_*.toml ]]; then
    for name in TRIREME_MODEL TRIREME_REWARD_MODEL TRIREME_PROMPTS; do
      [ -n "${!name}" ] || wrong+=("$name is empty: the deck leaves it to this script")
    done
  fi
  [ ${#wrong[@]} -gt 0 ] || return 0
  printf 'slurm/trireme.sh: %s\n' "${wrong[@]}" >&2
  settings=78
  [ "$dry_run" = 1 ] || exit "$settings"  # a dry run also has the program's word on the deck
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
  echo $((days * 86400 + 10#$total))
}

# One field of this job as Slurm sees it now.
ask_slurm() { squeue -h -j "${SLURM_JOB_ID:-}" -o "$1" 2>/dev/null || true; }

# The second at which Slurm ends the job; nothing when there is no limit or nobody says. Slurm tells it since 23.02.
end_of_job() {
  local left
  if [ "${SLURM_JOB_END_TIME:-0}" -gt "$(date +%s)" ] 2>/dev/null; then # one in the past: the limit was extended since
    echo "$SLURM_JOB_END_TIME"
  elif [ -n "${SLURM_JOB_ID:-}" ]; then
    left=$(to_seconds "$(ask_slurm %L)")
    [ -z "$left" ] || echo $(($(date +%s) + left))
  fi
}

# "FENCE STEP" of the newest checkpoint: a later start has a greater fence, and may have gone back to an earlier step. They lie where the deck
# in the run folder says.
newest_save() {
  local folder manifest
  folder=$(sed -n '/^\[ckpt\]/,/^\[/s/^path = "\(.*\)"$/\1/p' "$run_dir/deck.toml" 2>/dev/null || true)
  for manifest in "${folder:-$run_dir/ckpt}"/step-[0-9]*/manifest.json; do
    { tr -d ' \n' <"$manifest"; echo; } 2>/dev/null | sed -n 's/.*"step":\([0-9]*\),"fence":\([0-9]*\).*/\2 \1/p'
  done | sort -k1,1n -k2,2n | tail -n 1 || true
}
newest_step() {
  local save
  save=$(newest_save)
  save=${save#* }
  echo "${save:-0}"
}
# Whether there is a checkpoint that was not there when this script began.
saved_something() { [ "$(newest_save)" != "$first_save" ]; }

# What a later reader of the log needs, by a list of what may be shown: never the whole environment.
save_environment() {
  local file=$run_dir/environment-$job.txt
  {
    say "job $job, restart $restart, nodes ${SLURM_JOB_NODELIST:-?}"
    env -0 | tr '\n\0' ' \n' | grep -E '^(SLURM|SLURMD|OMPI|PMIX|PMI|PRTE|MPICH|I_MPI|UCX|FI|NCCL|CUDA|OMP|MKL|TRIREME)_' |
      sed -E 's/^([^=]*(TOKEN|KEY|SECRET|PASS|JWT)[^=]*)=.*/\1=(hidden)/' | sort
    if command -v module >/dev/null 2>&1; then module list 2>&1; fi
  } >"$file" || true
}

# The launcher with one rank per task and TRIREME_THREADS_PER_RANK cores for each: the rank starts a thread on every core that it is
# bound to (run.threads = "auto"), and pins them.
launcher() {
  local threads=$TRIREME_THREADS_PER_RANK more=()
  if [ -z "$TRIREME_MPI" ]; then
    TRIREME_MPI=mpirun
    if command -v srun >/dev/null && srun --mpi=list 2>&1 | grep -q pmix; then TRIREME_MPI=pmix; fi
  fi
  if [ "$TRIREME_MPI" = mpirun ]; then
    [ "$threads" = 1 ] || more=(":PE=$threads")
    launch=(mpirun -n "$ranks" --map-by "ppr:$per_node:node${more[*]}")
  else
    # -K1: without it a killed rank leaves the others waiting until the walltime. srun forgets the batch job's --cpus-per-task.
    launch=(srun --kill-on-bad-exit=1 --mpi="$TRIREME_MPI" --cpus-per-task="$threads" --cpu-bind=cores)
  fi
  read -r -a more <<<"$TRIREME_MPI_OPTIONS"
  launch+=("${more[@]}")
}

# Run by each rank on its node. A warning that comes while a rank still starts must not end it: USR1 is ignored until the program
# has its own handler. One GPU per local rank, from those that Slurm gives to the node's ranks; a single one was bound by Slurm.
# The network card is the one that was named; without names UCX and NCCL take the one next to the core or GPU by themselves.
# shellcheck disable=SC2016  # expanded on the node
rank_setup='
trap "" USR1 USR2
local=${OMPI_COMM_WORLD_LOCAL_RANK:-${SLURM_LOCALID:-}}
if [ "$TRIREME_GPUS_PER_NODE" != 0 ]; then
  [ -n "$local" ] || { echo "slurm/trireme.sh: the launcher gives no local rank, so no GPU can be chosen: set TRIREME_MPI" >&2; exit 69; }
  read -ra order <<<"$TRIREME_GPU_ORDER"; read -ra nics <<<"$TRIREME_NICS"
  IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES:-}"
  mine=${order[local]:-$local}
  if [ ${#gpus[@]} != 1 ]; then export CUDA_VISIBLE_DEVICES=${gpus[mine]:-$mine}; fi
  case ${nics[local]:-} in
    "") ;;
    cxi*) export FI_CXI_DEVICE_NAME=${nics[local]} ;;
    *) export UCX_NET_DEVICES=${nics[local]}:1 ;;
  esac
fi
exec "$@"'

# Overrides begin at words of the form section.key=, so a value may hold blanks; line ends separate them, too.
split_overrides() {
  mapfile -t overrides < <(sed -E 's/(^|[[:space:]]+)([a-z][a-z0-9_]*(\.[a-z0-9_]+)+=)/\n\2/g' <<<"$1" | sed -E '/^[[:space:]]*$/d; s/[[:space:]]+$//')
}

build_launch_line() {
  local given=$TRIREME_OVERRIDES sweep=() overrides=()
  if [ -n "$TRIREME_SWEEP" ]; then
    IFS='|' read -r -a sweep <<<"$TRIREME_SWEEP"
    given+=" ${sweep[${task:-0}]:-}"
  fi
  if takes_deck; then
    split_overrides "$given"
    arguments=("$TRIREME_COMMAND" "$deck" "run.dir=$run_dir")
    [ -z "$TRIREME_MODEL" ] || arguments+=("model.path=$TRIREME_MODEL")
    [ -z "$TRIREME_REWARD_MODEL" ] || arguments+=("reward.source.0.path=$TRIREME_REWARD_MODEL")
    [ -z "$TRIREME_PROMPTS" ] || arguments+=("$(data_key)=[\"$TRIREME_PROMPTS\"]")
    # A node that has lost its GPUs must not turn the run into one on CPUs.
    [ "$TRIREME_GPUS_PER_NODE" = 0 ] || [[ " ${overrides[*]}" == *" run.device="* ]] || arguments+=("run.device=cuda")
    # A key may be given once: somebody's own limit stands.
    [ -z "$ends_at" ] || [[ " ${overrides[*]}" == *" run.walltime="* ]] || arguments+=("run.walltime=$((ends_at - $(date +%s)))s")
  else
    read -r -a overrides <<<"${given//$'\n'/ }"
    arguments=("$TRIREME_COMMAND")
  fi
  arguments+=("${overrides[@]}")
  launcher
  launch+=(bash -c "$rank_setup" rank "$program" "${arguments[@]}")
}

# What would run: the program checks the deck and prints which ranks have which role. Its exit code is that of the dry run, but
# where it cannot start at all (a login node without its libraries).
show() {
  local rc=0 says
  printf 'launch:'; printf ' %q' "${launch[@]}"; printf '\n'
  takes_deck || return 0
  says=$("$program" "${arguments[@]}" --dry-run --ranks "$ranks" --ranks-per-node "$per_node" 2>&1) || rc=$?
  case $rc in
    126 | 127) echo "not checked, since $program cannot be started here: $says" ;;
    *) echo "$says"; return "$rc" ;;
  esac
}

# Comes back in the queue under the same job id; never after scancel, when Slurm no longer calls the job running.
requeue() {
  local state
  state=$(ask_slurm '%T, %r')
  case $state in
    RUNNING* | *TimeLimit)
      say "requeueing $job: $1"  # before: Slurm ends this shell at once
      scontrol requeue "$job" || say "scontrol requeue failed: sbatch the same script to go on" ;;
    *) say "Slurm has ended the job ($state): not requeued" ;;
  esac
}

# Restarts in a row without a new checkpoint in between: a job of months may lose many nodes, one that makes no step is stopped. The count
# lies in the run folder with the checkpoint it counts from, since a requeued job starts with a new shell.
retry() {
  local retries=0 counted_from='' newest
  newest=$(newest_save)
  { read -r retries counted_from <"$run_dir/.retries"; } 2>/dev/null || true
  if [ "$counted_from" != "$newest" ] || ! [[ $retries =~ ^[0-9]+$ ]]; then retries=0; fi
  if [ "$retries" -ge "$TRIREME_MAX_RETRIES" ]; then
    say "$1: stopped after $retries retries without a new checkpoint"
  else
    echo "$((retries + 1)) $newest" >"$run_dir/.retries"
    requeue "$1 (retry $((retries + 1)) of $TRIREME_MAX_RETRIES without a new checkpoint)"
  fi
}

after() {
  local rc=$1 step
  step=$(newest_step)
  if [ -n "$stopped" ]; then
    say "stopped by $stopped at step $step (exit code $rc): sbatch the same script to go on"
    return
  fi
  case $rc in
    0) say "finished at step $step"; rm -f "$run_dir/.retries" ;;
    75)
      if [ -e "$run_dir/stopped" ] || [ -e "$run_dir/stop" ]; then  # renamed by the program when it has obeyed
        say "stopped at step $step by the file 'stop': sbatch the same script to go on"
      elif [ "$restart" -ge "$TRIREME_MAX_RESTARTS" ]; then
        say "stopped at step $step; TRIREME_MAX_RESTARTS=$TRIREME_MAX_RESTARTS is reached: sbatch the same script to go on"
      elif saved_something; then
        rm -f "$run_dir/.retries"
        requeue "stopped at step $step before the walltime"
      else
        retry "exit code 75 without a new checkpoint (step $step), as if the walltime were too short for one iteration"
      fi ;;
    70 | 71 | 76 | 134 | 135 | 136 | 137 | 139 | 143) retry "exit code $rc, from step $first_step to step $step" ;;
    *) say "exit code $rc: a retry cannot help (docs/user/exit_codes.md)" ;;
  esac
}

# The walltime is near: save, exit 75, come back. Repeated, since a rank that was still starting has not heard it; the last sleep outlives this shell.
# shellcheck disable=SC2317  # called by the trap
on_warning() {
  interrupted=1
  say "USR1: saving"
  if [ -n "$pid" ]; then while kill -USR1 "$pid"; do sleep 10; done >/dev/null 2>&1 & fi
}

# TERM at the time limit: whoever saves in the seconds that are left (KillWait) comes back. Any other TERM is somebody's wish to
# stop: save, but do not come back.
# shellcheck disable=SC2317  # called by the trap
on_term() {
  local state
  interrupted=1
  state=$(ask_slurm '%T, %r')
  [[ $state == *TimeLimit ]] || stopped="TERM ($state)"
  say "TERM ($state): saving"
  [ -z "$pid" ] || kill -USR1 "$pid" 2>/dev/null || true
}

# The program says itself with which exit code it ends, in a file of this start: the launcher ends the ranks that have not left when the first
# one has, and reports that (srun: 143). Its number counts when there is no file, as after a rank was killed.
take_verdict() {
  local verdict
  { read -r verdict _ <"$TRIREME_VERDICT"; } 2>/dev/null || verdict=
  rm -f "$TRIREME_VERDICT"
  unset TRIREME_VERDICT
  [[ $verdict =~ ^[0-9]+$ ]] || return 0
  [ "$verdict" = "$rc" ] || say "the launcher reports exit code $rc, the program $verdict: $verdict counts"
  rc=$verdict
}

# Open MPI's mpirun may stand there for ever behind a rank that was killed (seen once in some thousand times). Where ranks ran on this node and none has been left for
# so long, nothing can come of it any more: it is killed, and the program's verdict counts, else 137.
watch_launcher() {
  local launcher=$1 folder step=5 seen='' alone=0
  folder=$(dirname "$(readlink -f "$program")")
  [ "$TRIREME_LAUNCHER_GRACE" -ge "$step" ] || step=1
  while sleep "$step" >/dev/null 2>&1; do
    if [ -n "$(find /proc -maxdepth 2 -name exe -lname "$folder/trireme*" -print -quit 2>/dev/null || true)" ]; then
      seen=1 alone=0
    elif [ -n "$seen" ]; then
      alone=$((alone + step))
      [ "$alone" -ge "$TRIREME_LAUNCHER_GRACE" ] || continue
      say "the launcher has not ended in $alone s behind the ranks of this node: killed"
      kill -KILL "$launcher" || true
      return
    fi
  done
}

run_once() {
  # Not looked at before the end: a network file system may remember for a while that there is no such file.
  TRIREME_VERDICT=$run_dir/.verdict-$job-$restart-$$-$(date +%s)
  export TRIREME_VERDICT
  build_launch_line  # each time: less of the walltime is left
  "${launch[@]}" &
  pid=$!
  watch_launcher "$pid" &
  watcher=$!
  disown "$watcher"  # the shell need not say that it is killed
  # A trapped signal ends `wait` early: wait again for the launcher's own exit code.
  while :; do
    interrupted=0
    if wait "$pid"; then rc=0; else rc=$?; fi
    [ "$interrupted" = 1 ] || break
  done
  pid=
  kill "$watcher" 2>/dev/null || true
  take_verdict
}

: "${TRIREME_THREADS_PER_RANK:=${SLURM_CPUS_PER_TASK:-1}}"
check_settings
load_modules
of_node=$TRIREME_GPUS_PER_NODE         # what is no number is named already
[[ $of_node =~ ^[1-9][0-9]*$ ]] || of_node=1
ranks=${SLURM_NTASKS:-$((nodes * of_node))}
per_node=${SLURM_NTASKS_PER_NODE:-$(((ranks + nodes - 1) / nodes))}
export TRIREME_GPUS_PER_NODE TRIREME_GPU_ORDER TRIREME_NICS
export OMP_NUM_THREADS=$TRIREME_THREADS_PER_RANK NCCL_RAS_ENABLE=${NCCL_RAS_ENABLE:-0}
ends_at=$(end_of_job)
if [ "$dry_run" = 1 ]; then
  build_launch_line
  show
  exit "$settings"
fi

mkdir -p "$run_dir"
find "$run_dir" -maxdepth 1 -name '.verdict-*' -mtime +1 -delete 2>/dev/null || true  # of starts that were killed
save_environment
first_save=$(newest_save)
first_step=$(newest_step)
say "job $job, restart $restart: $ranks ranks on $nodes nodes, from step $first_step, in $run_dir, $([ -z "$ends_at" ] || echo "$((ends_at - $(date +%s))) s") left"

lock_wait_ends=$(($(date +%s) + TRIREME_LOCK_WAIT))
tried_again='' tried_from=''
while [ -z "$stopped" ]; do
  run_once
  case $rc in
    # Slurm may start a job again (node failure, preemption) while ranks of the run before still end.
    73)
      [ "$(date +%s)" -lt "$lock_wait_ends" ] || break
      say "the run folder is in use: another try in 5 s"
      sleep 5 & wait $! || true ;;
    # A device, a license or a file server that is gone for a moment; the second time without a new checkpoint it is not that.
    69 | 74)
      newest=$(newest_save)
      if [ -n "$tried_again" ] && { [ -z "$newest" ] || [ "$newest" = "$tried_from" ]; }; then break; fi
      tried_again=1 tried_from=$newest
      say "exit code $rc: one more try in $TRIREME_RETRY_PAUSE s"
      sleep "$TRIREME_RETRY_PAUSE" & wait $! || true ;;
    *) break ;;
  esac
done
after "$rc"
exit "$rc"
