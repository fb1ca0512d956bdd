# Not tried on the machine itself: put together from public pages, all retrieved 2026-11-21. Sourced, not run.
# Frontier (OLCF), CPU build only: its GPUs are AMD's, and Trireme's GPU path is CUDA and NCCL.
#   export SBATCH_ACCOUNT=... TRIREME_GPUS_PER_NODE=0 TRIREME_DECK=... TRIREME_RUN_DIR=$MEMBERWORK/...
#   . slurm/sites/frontier.sh && sbatch --nodes=4 $TRIREME_SBATCH slurm/ppo_70b.sh
#
# 56 of 64 cores are for jobs, 7 in each of 8 L3 regions. Partition batch: 2 hours up to 91 nodes, 6 up to 183, 12 above;
# partition extended: 24 hours up to 64 nodes, one job at a time. --signal is there in the form that slurm/ppo_70b.sh uses.
#   https://github.com/olcf/olcf-user-docs/blob/2745903/systems/frontier_user_guide.rst (2026-07-22)
# From no page: --mpi=cray_shasta is for Cray MPICH; `srun --mpi=list` on a login node shows what there is.

if [ -z "${SBATCH_ACCOUNT:-}" ]; then
  echo "slurm/sites/frontier.sh: set SBATCH_ACCOUNT first (the project to charge)" >&2
  return 78
fi
if [ "${TRIREME_GPUS_PER_NODE:-}" != 0 ]; then
  echo "slurm/sites/frontier.sh: Trireme cannot use Frontier's AMD GPUs (its GPU path is CUDA and NCCL): set TRIREME_GPUS_PER_NODE=0 to" \
    "run the CPU build on the CPUs, which leaves the GPUs idle, or use another machine" >&2
  return 78
fi
export TRIREME_GPUS_PER_NODE
export SBATCH_PARTITION="${SBATCH_PARTITION:-batch}"
export SBATCH_TIMELIMIT="${SBATCH_TIMELIMIT:-02:00:00}"
export TRIREME_MPI="${TRIREME_MPI:-cray_shasta}"
# MPI carries host memory only: with MPICH_GPU_SUPPORT_ENABLED=1 Cray MPICH wants its GPU library (GTL) linked and ends in MPI_Init without it.
export MPICH_GPU_SUPPORT_ENABLED=0
export TRIREME_SBATCH="--ntasks-per-node=8 --cpus-per-task=7 --gpus-per-node=0"
