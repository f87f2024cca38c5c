NPROC_PER_NODE=8 xtuner train internlm2_7b_full_alpaca_e3 --deepspeed deepspeed_zero2
