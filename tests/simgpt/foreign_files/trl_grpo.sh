trl vllm-serve --model Qwen/Qwen2.5-7B &
accelerate launch --config_file deepspeed_zero3.yaml -m trl.scripts.grpo --num_generations 8 --per_device_train_batch_size 4
