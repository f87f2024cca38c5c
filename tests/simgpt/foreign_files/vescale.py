from vescale.dtensor.device_mesh import init_device_mesh
from vescale.dmodule.api import parallelize_module
mesh = dict(dp=2, tp=4)
