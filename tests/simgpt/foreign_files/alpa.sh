python3 benchmark.py --suite gpt.perf_test_auto --num-hosts 8 --num_micro_batches 64 --pipeline-parallel 4 --operator-parallel 2 --use-manual-layer
