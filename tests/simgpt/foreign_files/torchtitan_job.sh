CONFIG_FILE=./train_configs/llama3_8b.toml
torchrun --nproc_per_node=8 --rdzv_backend c10d -m torchtitan.train --job.config_file ${CONFIG_FILE} --training.local_batch_size 2
