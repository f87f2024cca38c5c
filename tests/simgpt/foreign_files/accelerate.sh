#!/bin/bash
#SBATCH -N 4
#SBATCH --gres=gpu:8
export LAUNCH="accelerate launch --use_fsdp --num_machines $SLURM_NNODES --num_processes 32"
srun bash -c "$LAUNCH pretrain_gpt.py --num_layers 24 --hidden_size 2048 --batch_size 8"
