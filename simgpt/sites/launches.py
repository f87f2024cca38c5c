"""The frameworks whose training a job script can run."""

LAUNCHES = ("megatron", "torchtitan", "deepspeed")
# By names and families of stacks; DeepSpeed's stacks are trained by scripts of several frameworks.
USUAL = {
    "megatron-core": "megatron",
    "torchtitan": "torchtitan",
    "torchtitan-2024": "torchtitan",
    "torchtitan-eager": "torchtitan",
}
