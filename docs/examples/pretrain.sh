#!/bin/bash
# Trains a 13 B Llama on 16 nodes.
NODES=${NODES:-16}
GPUS=8
TP=${TP:=2} ; PP=4
WORLD=$((NODES * GPUS))   # 128
OUT=${1:-/scratch/out}/$(date +%F)
mkdir -p "$OUT"

LAUNCH="--nproc_per_node $GPUS --nnodes $NODES \
        --rdzv_endpoint $HEAD:29500"

MODEL=(
    --num-layers 40
    --hidden-size 5120 --num-attention-heads 40
    --ffn-hidden-size 13824   # as published
    --seq-length 4096 --max-position-embeddings 4096
    --position-embedding-type rope
    --swiglu --normalization RMSNorm --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0 --hidden-dropout 0
    --vocab-size 32000 --tokenizer-type Llama2Tokenizer
)
ARGS="--tensor-model-parallel-size $TP \
      --pipeline-model-parallel-size ${PP} --sequence-parallel \
      --num-layers-per-virtual-pipeline-stage 2 \
      --micro-batch-size 1 --global-batch-size $((WORLD*8)) --bf16"
if [ "$TP" -gt 1 ]; then
    ARGS+=" --tp-comm-overlap"
else
    ARGS="$ARGS --recompute-granularity full"
fi
if [[ -f $OUT/latest ]]; then
    ARGS="$ARGS --load $OUT"
fi

torchrun $LAUNCH pretrain_gpt.py "${MODEL[@]}" $ARGS \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --lr 1.5e-4 --train-iters 1000 --save "$OUT" --split '99,1,0' | tee log.txt
