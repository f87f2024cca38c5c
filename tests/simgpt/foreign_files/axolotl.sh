accelerate launch --num_processes 8 -m axolotl.cli.train config.yml --gradient-accumulation-steps 4
