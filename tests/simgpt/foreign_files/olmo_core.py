from olmo_core.config import DType
from olmo_core.nn.transformer import TransformerConfig
SEQUENCE_LENGTH = 4096
