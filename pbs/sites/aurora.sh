# Not tried on the machine itself: put together from public pages, all retrieved 2026-11-21. Sourced, not run.
# Aurora (ALCF), CPU build only: its GPUs are Intel's, and Trireme's GPU path is CUDA and NCCL.
#   export TRIREME_ACCOUNT=... TRIREME_GPUS_PER_NODE=0 TRIREME_DECK=... TRIREME_RUN_DIR=/flare/...
#   . pbs/sites/aurora.sh && qsub $TRIREME_QSUB pbs/ppo_70b.pbs
# TRIREME_NODES (4), TRIREME_QUEUE (capacity) and TRIREME_WALLTIME (24 hours) may be set too; set everything before you source.
#
# A node: 2 x 52 cores with two hardware threads each, 1 TB of DDR5, 8 Slingshot cards.
# Queues: capacity up to 16 nodes and 168 hours; debug-scaling 2 to 256 nodes, 1 hour; prod from 256 nodes (12 hours up to 1024,
# 18 up to 1999, 24 above). Account, walltime and filesystems= are compulsory. mpiexec is PALS. Submit from a project folder.
#   https://github.com/argonne-lcf/user-guides/tree/7d04a3f9/docs (2026-08-19): aurora/index.md, aurora/running-jobs-aurora.md,
#   running-jobs/index.md

if [ -z "${TRIREME_ACCOUNT:-}" ]; then
  echo "pbs/sites/aurora.sh: set TRIREME_ACCOUNT first (the project to charge)" >&2
  return 78
fi
if [ "${TRIREME_GPUS_PER_NODE:-}" != 0 ]; then
  echo "pbs/sites/aurora.sh: Trireme cannot use Aurora's Intel GPUs (its GPU path is CUDA and NCCL): set TRIREME_GPUS_PER_NODE=0 to" \
    "run the CPU build on the CPUs, which leaves the GPUs idle, or use another machine" >&2
  return 78
fi
export TRIREME_GPUS_PER_NODE
export TRIREME_THREADS_PER_RANK=13
export TRIREME_MPI=pals
_trireme_names=$(env | sed -n 's/^\(TRIREME_[A-Z_]*\)=.*/\1/p' | grep -v '^TRIREME_QSUB$' | paste -sd, -)
export TRIREME_QSUB="-A $TRIREME_ACCOUNT -q ${TRIREME_QUEUE:-capacity} -l filesystems=home:flare -l walltime=${TRIREME_WALLTIME:-24:00:00} \
-l select=${TRIREME_NODES:-4}:mpiprocs=8 -v $_trireme_names"
unset _trireme_names
