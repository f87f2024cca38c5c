composer -n 8 train.py pretrain.yaml train_loader.dataset.split=train max_duration=10ba
