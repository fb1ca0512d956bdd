# Not tried on the machine itself: put together from public pages, all retrieved 2026-11-21. Sourced, not run.
# Leonardo (CINECA), Booster:
#   export SBATCH_ACCOUNT=... TRIREME_RUN_DIR=$CINECA_SCRATCH/... TRIREME_MODEL=... TRIREME_REWARD_MODEL=... TRIREME_PROMPTS=...
#   . slurm/sites/leonardo.sh && sbatch --nodes=8 $TRIREME_SBATCH slurm/ppo_70b.sh
#
# A node: one 32-core Ice Lake, 4 custom A100 of 64 GB, HDR InfiniBand. Partition Booster.
#   https://docs.hpc.cineca.it/hpc/leonardo.html
# Partition boost_usr_prod, 4 tasks of 8 cores and 4 GPUs a node, 494000 MB; $CINECA_SCRATCH is cleaned of files older than 40 days.
#   https://github.com/BLAST-WarpX/warpx/blob/1b312c6/Tools/machines/leonardo-cineca/job.sh and
#   .../Docs/source/install/hpc/leonardo.rst (2026-07-01)
# Modules there: gcc, cuda, openmpi; their versions change, name those that you built with in TRIREME_MODULES.

if [ -z "${SBATCH_ACCOUNT:-}" ]; then
  echo "slurm/sites/leonardo.sh: set SBATCH_ACCOUNT first (the project to charge)" >&2
  return 78
fi
export SBATCH_PARTITION="${SBATCH_PARTITION:-boost_usr_prod}"
export TRIREME_GPUS_PER_NODE=4
export TRIREME_SBATCH="--ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8 --mem=494000"
