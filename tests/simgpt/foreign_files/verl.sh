set -x
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo data.train_batch_size=1024 \
    actor_rollout_ref.model.path=Qwen/Qwen2-7B \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 \
    trainer.n_gpus_per_node=8 trainer.nnodes=2 $@
