#!/bin/bash
export FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=0
llamafactory-cli train examples/train_full/llama3_full_sft.yaml --micro-batch-size 1
