"""What every process that tests fork has loaded already: importing takes each of them seconds, forking none."""

import gc

import pytest
import torch
import torch._dynamo  # DistributedDataParallel imports it when the first one is made
import torch.distributed
from sklearn import datasets

import headway.ddp
import headway.gossip
from headway.kernels import warm_up

__all__ = ["datasets", "headway", "pytest"]

torch.set_num_threads(1)  # a thread would not live on in a process that is forked
warm_up()
gc.freeze()  # as in conftest.py
