torchrun --nproc_per_node=8 scripts/performance/run_script.py --model_name llama3 --model_size 8b model.tensor_model_parallel_size=2
