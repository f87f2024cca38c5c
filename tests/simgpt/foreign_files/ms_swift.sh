NPROC_PER_NODE=8 CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \
swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type full --per_device_train_batch_size 1 --deepspeed zero3 --max_length 8192
