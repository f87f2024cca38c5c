deepspeed --num_gpus=8 --num_nodes=2 finetune.py \
  --deepspeed ds_config_zero3.json \
  --model_name_or_path bigscience/bloom-7b1 --bf16 True \
  --per_device_train_batch_size 4 --save_strategy steps --learning_rate 2e-5
