from simgpt.api.jobs import calibrate as calibrate
from simgpt.api.jobs import compare as compare
from simgpt.api.jobs import export as export
from simgpt.api.jobs import import_job as import_job
from simgpt.api.jobs import run as run
from simgpt.api.jobs import sbatch as sbatch
from simgpt.api.lookups import bench_network as bench_network
from simgpt.api.lookups import machine as machine
from simgpt.api.lookups import model as model
from simgpt.api.lookups import report as report
from simgpt.api.lookups import stack as stack
from simgpt.api.lookups import validate as validate
from simgpt.api.steps import plan_run as plan_run
from simgpt.api.steps import predict as predict
from simgpt.api.steps import search as search
from simgpt.api.steps import sweep as sweep
from simgpt.api.steps import why as why
from simgpt.question import Question as Question
from topologies.errors import SimgptError as SimgptError
from topologies.session import Session as Session

__version__: str
__all__: list[str]
