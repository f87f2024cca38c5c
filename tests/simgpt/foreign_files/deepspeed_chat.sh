deepspeed main.py --data_path Dahoas/rm-static --data_split 2,4,4 --model_name_or_path facebook/opt-1.3b \
  --per_device_train_batch_size 4 --max_seq_len 512 --zero_stage 2 --deepspeed --output_dir out
