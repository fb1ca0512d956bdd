# Not tried on the machine itself: put together from public pages, all retrieved 2026-11-21. Sourced, not run.
# Perlmutter (NERSC), GPU nodes:
#   export SBATCH_ACCOUNT=... TRIREME_RUN_DIR=$PSCRATCH/... TRIREME_MODEL=... TRIREME_REWARD_MODEL=... TRIREME_PROMPTS=...
#   . slurm/sites/perlmutter.sh && sbatch --nodes=8 $TRIREME_SBATCH slurm/ppo_70b.sh
#
# A node: one 64-core EPYC 7763, 4 A100 and 4 Slingshot cards; 256 nodes have GPUs of 80 GB, 1536 of 40 GB.
#   https://docs.nersc.gov/systems/perlmutter/architecture
# QOS: without one a job goes to debug, where a script may not submit another one; production goes to regular.
#   https://docs.nersc.gov/jobs/policy/
# The constraint gpu&hbm80g asks for the large GPUs; GPU 3 - i is next to local rank i; 32 hardware threads a rank.
#   https://github.com/BLAST-WarpX/warpx/blob/1b312c6/Tools/machines/perlmutter-nersc/perlmutter_gpu.sbatch (2026-07-01)
# From no page: --mpi=cray_shasta is for Cray MPICH; `srun --mpi=list` on a login node shows what there is.

if [ -z "${SBATCH_ACCOUNT:-}" ]; then
  echo "slurm/sites/perlmutter.sh: set SBATCH_ACCOUNT first (the project to charge)" >&2
  return 78
fi
export SBATCH_CONSTRAINT="${SBATCH_CONSTRAINT:-gpu&hbm80g}"
export SBATCH_QOS="${SBATCH_QOS:-regular}"
export TRIREME_GPUS_PER_NODE=4
export TRIREME_GPU_ORDER="3 2 1 0"
export TRIREME_THREADS_PER_RANK=16
export TRIREME_MPI="${TRIREME_MPI:-cray_shasta}"
export TRIREME_MPI_OPTIONS="--cpus-per-task=32"
# NCCL reaches Slingshot only through its libfabric plugin: add the center's NCCL module to those that you built with.
export TRIREME_MODULES="${TRIREME_MODULES:-PrgEnv-gnu craype-accel-nvidia80 cudatoolkit cray-hdf5-parallel}"
export MPICH_OFI_NIC_POLICY=GPU
# MPI carries host memory only, NCCL the GPUs' own: with MPICH_GPU_SUPPORT_ENABLED=1 Cray MPICH wants its GPU library (GTL) linked and ends in MPI_Init
# without it. The monitor of registered memory is the one that other centers with Slingshot (CSCS, Isambard, ALCF) name for NCCL's plugin:
#   https://github.com/eth-cscs/cscs-docs/tree/main/docs/software/communication: cray-mpich.md, nccl.md (retrieved 2026-11-27)
export MPICH_GPU_SUPPORT_ENABLED=0
export FI_MR_CACHE_MONITOR="${FI_MR_CACHE_MONITOR:-userfaultfd}"
export TRIREME_SBATCH="--ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=32"
