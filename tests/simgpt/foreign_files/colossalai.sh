colossalai run --nproc_per_node 8 --hostfile hosts.txt benchmark.py -c 7b --plugin 3d --tp 2 --pp 2 --zero 1 -b 8 --mbs 1 -g
