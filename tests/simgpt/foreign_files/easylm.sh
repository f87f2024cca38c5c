python -m EasyLM.models.llama.llama_train --mesh_dim='1,64,4' --load_llama_config='7b' --total_steps=250000 --train_dataset.huggingface_dataset.batch_size=2048
