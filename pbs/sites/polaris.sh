# Not tried on the machine itself: put together from public pages, all retrieved 2026-11-21. Sourced, not run.
# Polaris (ALCF):
#   export TRIREME_ACCOUNT=... TRIREME_RUN_DIR=/eagle/... TRIREME_MODEL=... TRIREME_REWARD_MODEL=... TRIREME_PROMPTS=...
#   . pbs/sites/polaris.sh && qsub $TRIREME_QSUB pbs/ppo_70b.pbs
# TRIREME_NODES (10), TRIREME_QUEUE (prod) and TRIREME_WALLTIME (3 hours) may be set too; set everything before you source.
#
# A node: one 32-core EPYC, 64 hardware threads, 4 A100 of 40 GB; GPU 3 - i is next to cores 8 i to 8 i + 7.
# Queues: prod 10 to 496 nodes (3 hours up to 24 nodes, 6 up to 99, 24 above); preemptable up to 10 nodes and 72 hours, killed
# without any warning, comes back with -r y (pbs/ppo_70b.pbs has it); debug-scaling up to 10 nodes and 1 hour. Account,
# walltime and filesystems= are compulsory. mpiexec is PALS.
#   https://github.com/argonne-lcf/user-guides/tree/7d04a3f9/docs (2026-08-19): polaris/index.md, polaris/running-jobs/index.md,
#   polaris/running-jobs/using-gpus.md, running-jobs/index.md
# NCCL over Slingshot: plugin and settings as in polaris/applications-and-libraries/libraries/nccl.md there. If a run hangs or
# times out in NCCL, the same page advises to unset NCCL_NET, NCCL_NET_GDR_LEVEL, NCCL_CROSS_NIC and NCCL_COLLNET_ENABLE.

if [ -z "${TRIREME_ACCOUNT:-}" ]; then
  echo "pbs/sites/polaris.sh: set TRIREME_ACCOUNT first (the project to charge)" >&2
  return 78
fi
export TRIREME_DECK="${TRIREME_DECK:-inputs/science/ppo_8b_a100_40.toml}"  # Llama-3-8B; ppo_70b.toml needs 96 such nodes (trireme plan)
export TRIREME_GPUS_PER_NODE=4
export TRIREME_GPU_ORDER="3 2 1 0"
export TRIREME_THREADS_PER_RANK=8
export TRIREME_MPI=pals
export NCCL_NET="AWS Libfabric" NCCL_NET_GDR_LEVEL=PHB NCCL_CROSS_NIC=1 NCCL_COLLNET_ENABLE=1
export FI_CXI_DISABLE_HOST_REGISTER=1 FI_MR_CACHE_MONITOR=userfaultfd FI_CXI_DEFAULT_CQ_SIZE=131072
# MPI carries host memory only: with MPICH_GPU_SUPPORT_ENABLED=1 Cray MPICH wants its GPU library (GTL) linked and ends in MPI_Init without it.
export MPICH_GPU_SUPPORT_ENABLED=0
export LD_LIBRARY_PATH="/soft/libraries/aws-ofi-nccl/v1.9.1-aws/lib:/soft/libraries/hwloc/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
_trireme_names=$(env | sed -n 's/^\(TRIREME_[A-Z_]*\)=.*/\1/p' | grep -v '^TRIREME_QSUB$' | paste -sd, -)
_trireme_names=$_trireme_names,NCCL_NET,NCCL_NET_GDR_LEVEL,NCCL_CROSS_NIC,NCCL_COLLNET_ENABLE
_trireme_names=$_trireme_names,FI_CXI_DISABLE_HOST_REGISTER,FI_MR_CACHE_MONITOR,FI_CXI_DEFAULT_CQ_SIZE,MPICH_GPU_SUPPORT_ENABLED,LD_LIBRARY_PATH
export TRIREME_QSUB="-A $TRIREME_ACCOUNT -q ${TRIREME_QUEUE:-prod} -l filesystems=home:eagle -l walltime=${TRIREME_WALLTIME:-03:00:00} \
-l select=${TRIREME_NODES:-10}:system=polaris:ncpus=64:ngpus=4:mpiprocs=4 -v $_trireme_names"
unset _trireme_names
