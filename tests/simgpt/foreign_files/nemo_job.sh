srun python examples/nlp/language_modeling/megatron_gpt_pretraining.py --config-path=conf --config-name=gpt trainer.num_nodes=4 model.micro_batch_size=2
