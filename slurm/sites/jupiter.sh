# Not tried on the machine itself: put together from public pages, all retrieved 2026-11-21. Sourced, not run.
# JUPITER Booster (JSC):
#   export SBATCH_ACCOUNT=... TRIREME_RUN_DIR=$SCRATCH/... TRIREME_MODEL=... TRIREME_REWARD_MODEL=... TRIREME_PROMPTS=...
#   . slurm/sites/jupiter.sh && sbatch --nodes=8 $TRIREME_SBATCH slurm/ppo_70b.sh
#
# A node: 4 GH200, each 72 Arm cores and a GPU of 96 GB, with 4 NDR200 InfiniBand cards. The cores are Arm: build there, with
# ./bootstrap.sh, which takes LibTorch's wheel for aarch64 (docs/user/install.md#64-bit-arm).
#   https://apps.fz-juelich.de/jsc/hps/jupiter/configuration.html
# Slurm without slurmd: the nodes run psid with the plugin psslurm.
#   https://apps.fz-juelich.de/jsc/hps/jupiter/batchsystem.html
# From no page of the center: the partition's name booster and --mpi=pspmix, which public scripts for its machines use.

if [ -z "${SBATCH_ACCOUNT:-}" ]; then
  echo "slurm/sites/jupiter.sh: set SBATCH_ACCOUNT first (the compute project to charge)" >&2
  return 78
fi
export SBATCH_PARTITION="${SBATCH_PARTITION:-booster}"
export TRIREME_GPUS_PER_NODE=4
export TRIREME_MPI="${TRIREME_MPI:-pspmix}"
export TRIREME_SBATCH="--ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=72"
