export LIBTPU_INIT_ARGS="--xla_tpu_enable_data_parallel_all_reduce_opt=true"
python3 MaxText/train.py MaxText/configs/base.yml run_name=r per_device_batch_size=6 ici_fsdp_parallelism=16 steps=30
