#!/bin/bash
ARGS="--model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --bf16 --do_train --output_dir out"
torchrun --nproc_per_node 8 run_clm.py $ARGS --deepspeed ds_config.json
