megatron sft --load Qwen2.5-7B-mcore --tensor_model_parallel_size 2 --sequence_parallel true \
  --micro_batch_size 16 --global_batch_size 16 --recompute_granularity selective --max_length 2048
