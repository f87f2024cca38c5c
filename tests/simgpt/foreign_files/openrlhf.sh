set -x
read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft \
   --max_len 2048 \
   --pretrain meta-llama/Meta-Llama-3-8B \
   --train_batch_size 256 \
   --micro_train_batch_size 2 \
   --zero_stage 2 --bf16
EOF
deepspeed --module $training_commands
