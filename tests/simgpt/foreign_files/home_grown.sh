torchrun --nproc_per_node=8 train_gpt2.py --input_bin "data/*.bin" --num_layers 12 --batch_size 64 --sequence_length 1024 --zero 1
