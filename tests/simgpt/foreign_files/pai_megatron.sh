#!/bin/bash
# sh run_mcore_llama3.sh ENV MODEL_SIZE BATCH_SIZE GLOBAL_BATCH_SIZE LR
MODEL_SIZE=$2
BATCH_SIZE=$3
if [ $MODEL_SIZE = 8B ]; then
NUM_LAYERS=32
HIDDEN_SIZE=4096
fi
torchrun --nproc_per_node 8 ../qwen2/pretrain_qwen.py --num-layers ${NUM_LAYERS} --hidden-size ${HIDDEN_SIZE} \
  --num-attention-heads 32 --micro-batch-size ${BATCH_SIZE} --seq-length 4096 --extra-vocab-size 256 --patch-tokenizer-type LLama3Tokenizer
