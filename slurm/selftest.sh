#!/usr/bin/env bash
# Is this cluster all right for Trireme? Two nodes, at most 15 minutes, no model to download (docs/user/selftest.md):
#   TRIREME_SELFTEST_DIR=$SCRATCH/trireme-selftest sbatch slurm/selftest.sh
# On a machine of slurm/sites/:   . slurm/sites/leonardo.sh && sbatch --nodes=2 $TRIREME_SBATCH slurm/selftest.sh
# On CPUs:                        TRIREME_GPUS_PER_NODE=0 TRIREME_SELFTEST_DIR=... sbatch --gpus-per-node=0 slurm/selftest.sh
#
# ---- site settings: those of slurm/trireme.sh, which runs each part -------------------------------------------------------
#SBATCH --job-name=trireme-selftest
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=00:15:00
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
# ---- nothing site-specific below --------------------------------------------------------------------------------------------
set -euo pipefail
: "${TRIREME_HOME:=${SLURM_SUBMIT_DIR:-$PWD}}"      # folder with build/release/trireme and inputs/, or PREFIX/share/trireme
export TRIREME_HOME
batch_script=$TRIREME_HOME/slurm/trireme.sh
job=${SLURM_JOB_ID:-none}
nodes=${SLURM_JOB_NUM_NODES:-1}
ranks=${SLURM_NTASKS:-$((nodes * ${SLURM_NTASKS_PER_NODE:-1}))}
restart=${SLURM_RESTART_COUNT:-0}
export batch_script job nodes ranks restart
# shellcheck disable=SC1091  # lies beside the inputs
. "$TRIREME_HOME/inputs/selftest/phases.sh"
