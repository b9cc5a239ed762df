"""The product around `conformal`: everything that touches a model, a database or a network."""

import os

__version__ = "0.1.0"

# Numerical libraries start a thread for each core when they are loaded, and their threads spin while they wait: beside
# other work a process burnt up to twenty times what its own cost. Several texts at once are several processes here, so
# each computes in one thread, unless somebody asked for more. Said before any such library is imported.
_threads = os.environ.get("SURESPAN_TORCH_THREADS") or os.environ.get("OMP_NUM_THREADS") or "1"
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, _threads if _threads.strip().isdecimal() else "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
