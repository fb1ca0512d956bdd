# Not tried on the machine itself: put together from public pages, all retrieved 2026-11-21. Sourced, not run.
# LUMI (CSC), CPU build on LUMI-C: the GPUs of LUMI-G are AMD's, and Trireme's GPU path is CUDA and NCCL.
#   export SBATCH_ACCOUNT=project_... TRIREME_GPUS_PER_NODE=0 TRIREME_DECK=... TRIREME_RUN_DIR=/scratch/project_.../...
#   . slurm/sites/lumi.sh && sbatch --nodes=4 $TRIREME_SBATCH slurm/ppo_70b.sh
#
# LUMI-C: 2 x 64 cores a node, 8 cores share an L3 cache. Partition standard: whole nodes, 2 days, --mem=0 for all memory.
# The account is compulsory. Jobs are requeued after a node failure without being asked; a requeued job's output is truncated
# unless --open-mode=append is given (slurm/ppo_70b.sh gives it).
#   https://github.com/Lumi-supercomputer/lumi-userguide/tree/6c3a26c/docs (2024-10-15): hardware/lumic.md,
#   runjobs/scheduled-jobs/{partitions,lumic-job,lumig-job,batch-job}.md
# From no page: --mpi=cray_shasta is for Cray MPICH; `srun --mpi=list` on a login node shows what there is.

if [ -z "${SBATCH_ACCOUNT:-}" ]; then
  echo "slurm/sites/lumi.sh: set SBATCH_ACCOUNT first (project_...)" >&2
  return 78
fi
if [ "${TRIREME_GPUS_PER_NODE:-}" != 0 ]; then
  echo "slurm/sites/lumi.sh: Trireme cannot use LUMI's AMD GPUs (its GPU path is CUDA and NCCL): set TRIREME_GPUS_PER_NODE=0 to" \
    "run the CPU build on LUMI-C, or use another machine" >&2
  return 78
fi
export TRIREME_GPUS_PER_NODE
export SBATCH_PARTITION="${SBATCH_PARTITION:-standard}"
export TRIREME_MPI="${TRIREME_MPI:-cray_shasta}"
# MPI carries host memory only: with MPICH_GPU_SUPPORT_ENABLED=1 Cray MPICH wants its GPU library (GTL) linked and ends in MPI_Init without it.
export MPICH_GPU_SUPPORT_ENABLED=0
export TRIREME_SBATCH="--ntasks-per-node=16 --cpus-per-task=8 --mem=0 --gpus-per-node=0"
