python3 metaseq/launcher/opt_baselines.py -n 128 -g 8 --model-size 175b --num-layers 96
