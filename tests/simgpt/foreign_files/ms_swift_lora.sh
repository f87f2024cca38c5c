CUDA_VISIBLE_DEVICES=0 swift sft --model Qwen/Qwen2.5-7B --train_type lora --lora_rank 8 --target_modules all-linear
