#!/bin/bash
# Trains a scenario on all machines of a Slurm job:
#
#   sbatch slurm.sh scenario.yaml cluster.simulators=31 cluster.gpus=1 cluster.learners.solver=1 cluster.learner_gpus=1
#
# All machines see the same installation, scenario and MARL_CACHE. Five minutes before its time is up, or when it is
# cancelled with `scancel --batch --signal=TERM JOB`, the run writes a checkpoint and ends; submitted again, it goes on.
#SBATCH --job-name=marl
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@300
#SBATCH --open-mode=append
set -euo pipefail

port=6379
# This script runs on the first machine, and so does the run itself.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
others=$((SLURM_NNODES - 1))

srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --port "$port" --include-dashboard false --block &
until ray status --address "$head:$port" > /dev/null 2>&1; do sleep 2; done
if ((others)); then
    srun --overlap --nodes="$others" --ntasks="$others" --exclude="$head" ray start --address "$head:$port" --block &
fi
# A cluster that is still too small would be refused.
count="import ray; ray.init('$head:$port', log_to_driver=False); print(len(ray.nodes()))"
until (($(python -c "$count" 2> /dev/null || echo 0) == SLURM_NNODES)); do sleep 2; done

# Slurm's signal reaches this script alone, so that Ray lives until the checkpoint is written.
marl train "$1" --out "runs/${SLURM_JOB_NAME}" --resume auto cluster.address="$head:$port" "${@:2}" &
run=$!
trap 'kill -TERM "$run"' TERM
wait "$run" || wait "$run"
