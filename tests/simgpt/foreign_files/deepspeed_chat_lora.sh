deepspeed --num_gpus 8 main.py --actor_model_name_or_path facebook/opt-13b --critic_model_name_or_path facebook/opt-350m \
  --num_padding_at_beginning 1 --actor_lora_dim 128 --only_optimize_lora --enable_hybrid_engine
