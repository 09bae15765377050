"""verl's TransferQueue as Ray actors on this machine."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import ray
import transfer_queue as tq
from omegaconf import OmegaConf


@contextmanager
def running_queue() -> Iterator[None]:
    """Start Ray and an empty queue for a block of code."""
    folder = tempfile.mkdtemp(prefix="tq-")  # short: the names of Ray's sockets must fit 107 characters
    ray.init(
        address="local",
        num_cpus=4,
        num_gpus=0,
        object_store_memory=80_000_000,
        include_dashboard=False,
        _temp_dir=folder,
    )
    settings = {"enable": True, "backend": {"SimpleStorage": {"num_data_storage_units": 1}}}
    tq.init(OmegaConf.create(settings))
    try:
        yield
    finally:
        tq.close()
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def empty_queue() -> None:
    """Remove everything from the queue."""
    for partition, items in (tq.kv_list() or {}).items():
        if items:
            tq.kv_clear(partition_id=partition, keys=list(items))
