# Not tried on the machine itself: put together from public pages, all retrieved 2026-11-21. Sourced, not run.
# JUWELS Booster (JSC):
#   export SBATCH_ACCOUNT=... TRIREME_RUN_DIR=$SCRATCH/... TRIREME_MODEL=... TRIREME_REWARD_MODEL=... TRIREME_PROMPTS=...
#   . slurm/sites/juwels_booster.sh && sbatch --nodes=6 $TRIREME_SBATCH slurm/ppo_70b.sh
#
# Slurm without slurmd: the nodes run psid with the plugin psslurm.
#   https://apps.fz-juelich.de/jsc/hps/juwels/batchsystem.html
# Partition booster, 4 tasks and 4 GPUs a node; A100 of 40 GB; $SCRATCH is cleaned of files older than 90 days.
#   https://github.com/BLAST-WarpX/warpx/blob/1b312c6/Tools/machines/juwels-jsc/juwels.sbatch and
#   .../Docs/source/install/hpc/juwels.rst (2026-07-01)
# From no page of the center: --mpi=pspmix, which public scripts for its machines use, and 24 threads a task.

if [ -z "${SBATCH_ACCOUNT:-}" ]; then
  echo "slurm/sites/juwels_booster.sh: set SBATCH_ACCOUNT first (the compute project to charge)" >&2
  return 78
fi
export SBATCH_PARTITION="${SBATCH_PARTITION:-booster}"
export TRIREME_DECK="${TRIREME_DECK:-inputs/science/ppo_8b_a100_40.toml}"  # Llama-3-8B; ppo_70b.toml needs 96 such nodes (trireme plan)
export TRIREME_GPUS_PER_NODE=4
export TRIREME_MPI="${TRIREME_MPI:-pspmix}"
export TRIREME_MODULES="${TRIREME_MODULES:-GCC OpenMPI CUDA HDF5}"
export TRIREME_SBATCH="--ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=24"
