deepspeed --num_nodes 4 --num_gpus 8 pretrain_gpt.py --deepspeed --deepspeed_config ds.json --zero-stage 1 \
  --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
  --micro-batch-size 4 --global-batch-size 512 --vocab-size 50257 --fp16 --tensor-model-parallel-size 2
