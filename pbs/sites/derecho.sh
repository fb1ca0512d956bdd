# Not tried on the machine itself: put together from public pages, all retrieved 2026-11-21. Sourced, not run.
# Derecho (NCAR), GPU nodes:
#   export TRIREME_ACCOUNT=... TRIREME_RUN_DIR=$SCRATCH/... TRIREME_MODEL=... TRIREME_REWARD_MODEL=... TRIREME_PROMPTS=...
#   . pbs/sites/derecho.sh && qsub $TRIREME_QSUB pbs/ppo_70b.pbs
# TRIREME_NODES (6), TRIREME_QUEUE (main) and TRIREME_WALLTIME (12 hours) may be set too; set everything before you source.
#
# 82 GPU nodes: one 64-core EPYC, 4 A100 of 40 GB, 4 Slingshot cards. The cuda module must be loaded, or nodes may lock up.
# Queues: main 12 hours; preempt 100 hours, at least 10 minutes of run, TERM and 10 minutes before KILL, comes back with -r y
# (pbs/ppo_70b.pbs has it; -r n is in the center's example). Launcher: mpiexec -n -ppn, --cpu-bind depth -d.
#   https://github.com/NCAR/HPC-Docs/tree/b4f71ff/docs (2026-05-19): compute-systems/derecho/index.md, pbs/charging.md,
#   pbs/preemption.md, pbs/job-scripts/derecho-job-script-examples-content.md
# Modules there: ncarenv, nvhpc, cuda, cray-mpich; their versions change, name those that you built with in TRIREME_MODULES.
# From no page: NCCL needs its libfabric plugin for Slingshot; ask the center which module brings it.

if [ -z "${TRIREME_ACCOUNT:-}" ]; then
  echo "pbs/sites/derecho.sh: set TRIREME_ACCOUNT first (the project to charge)" >&2
  return 78
fi
export TRIREME_DECK="${TRIREME_DECK:-inputs/science/ppo_8b_a100_40.toml}"  # Llama-3-8B; ppo_70b.toml needs 96 such nodes (trireme plan)
export TRIREME_GPUS_PER_NODE=4
export TRIREME_THREADS_PER_RANK=16
export TRIREME_MPI=pals
export TRIREME_MODULES="${TRIREME_MODULES:-cuda}"
# MPI carries host memory only, NCCL the GPUs' own: with MPICH_GPU_SUPPORT_ENABLED=1 Cray MPICH wants its GPU library (GTL) linked and ends in MPI_Init
# without it. The monitor of registered memory is the one that other centers with Slingshot (CSCS, Isambard, ALCF) name for NCCL's plugin:
#   https://github.com/eth-cscs/cscs-docs/tree/main/docs/software/communication: cray-mpich.md, nccl.md (retrieved 2026-11-27)
export MPICH_GPU_SUPPORT_ENABLED=0
export FI_MR_CACHE_MONITOR="${FI_MR_CACHE_MONITOR:-userfaultfd}"
_trireme_names=$(env | sed -n 's/^\(TRIREME_[A-Z_]*\)=.*/\1/p' | grep -v '^TRIREME_QSUB$' | paste -sd, -)
_trireme_names=$_trireme_names,MPICH_GPU_SUPPORT_ENABLED,FI_MR_CACHE_MONITOR
export TRIREME_QSUB="-A $TRIREME_ACCOUNT -q ${TRIREME_QUEUE:-main} -l walltime=${TRIREME_WALLTIME:-12:00:00} \
-l select=${TRIREME_NODES:-6}:ncpus=64:ngpus=4:mpiprocs=4 -v $_trireme_names"
unset _trireme_names
