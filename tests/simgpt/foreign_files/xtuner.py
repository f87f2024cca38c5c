from mmengine.dataset import DefaultSampler
from xtuner.dataset import process_hf_dataset
pretrained_model_name_or_path = 'internlm/internlm2-7b'
max_length = 2048
pack_to_max_length = True
batch_size = 1
accumulative_counts = 16
max_epochs = 3
