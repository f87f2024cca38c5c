JOB_NAME = "7b_train"
NUM_LAYER, HIDDEN_SIZE = 32, 4096
VOCAB_SIZE = 103168
data = dict(seq_len=2048, micro_num=4, micro_bsz=2, packed_length=4096)
hybrid_zero_optimizer = dict(overlap_sync_grad=True, clip_grad_norm=1.0)
parallel = dict(zero1=dict(size=8), tensor=dict(size=2, mode="mtp"), pipeline=dict(size=1, interleaved_overlap=True))
