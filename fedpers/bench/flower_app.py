"""A plain Flower ClientApp for the benchmarks, in a module so that Ray's actors keep its data."""

import json
import os
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpers.bench.work import LR, SETTING, Work, as_module, make_model, tensors

app = ClientApp()
KEPT: dict[str, Any] = {}


@app.train()
def train(message: Message, context: Context) -> Message:
    """Local SGD from the received weights."""
    if not KEPT:
        torch.set_num_threads(1)
        work = Work(**json.loads(os.environ[SETTING]))
        x, y = tensors(work)
        KEPT.update(work=work, x=x, y=y, module=as_module(make_model(work)))
    work, module, k = KEPT["work"], KEPT["module"], int(context.node_config["partition-id"])
    received: Any = message.content["arrays"]
    module.load_state_dict(received.to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    for _ in range(work.E):
        order = torch.randperm(work.n)
        x, y = KEPT["x"][k][order], KEPT["y"][k][order]
        for s in range(0, work.n, work.B):
            loss = F.cross_entropy(module(x[s : s + work.B]), y[s : s + work.B])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": work.n})
    content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
