python ./deepy.py train.py -d configs 20B.yml local_setup.yml
