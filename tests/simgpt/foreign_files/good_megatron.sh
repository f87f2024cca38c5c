#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
LAUNCHER=(torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES)
MODEL="--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --ffn-hidden-size 11008 --swiglu --vocab-size 32000"
srun bash -c "${LAUNCHER[*]} pretrain_gpt.py $MODEL --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 2 --bf16"
