"""pFedHN's server restated as a module: torch.nn layers, torch.optim.SGD, and a loss whose gradient is g."""

import torch
from torch import nn


class Hypernetwork(nn.Module):
    """Layers for each tensor of the model, as in the paper's Figure 1; parameters are put in by hand."""

    def __init__(self, clients, dim, hidden, depth, shapes):
        super().__init__()
        self.embeddings = nn.Embedding(clients, dim)
        layers = [nn.Linear(dim, hidden)]
        for _ in range(depth):
            layers += [nn.ReLU(), nn.Linear(hidden, hidden)]
        self.trunk, self.shapes = nn.Sequential(*layers), shapes
        self.out = nn.ModuleList([nn.Linear(hidden, shape.numel()) for shape in shapes.values()])
        self.double()

    def forward(self, i):
        z = self.trunk(self.embeddings(torch.tensor([i])))
        outputs = zip(self.shapes.items(), self.out, strict=True)
        return {name: layer(z).view(shape) for (name, shape), layer in outputs}


def optimizer(net, rate, embed_rate, momentum, decay):
    """SGD with a rate of its own for the embeddings."""
    rest = [p for name, p in net.named_parameters() if "embeddings" not in name]
    groups = [{"params": rest, "lr": rate}, {"params": net.embeddings.parameters(), "lr": embed_rate}]
    return torch.optim.SGD(groups, lr=rate, momentum=momentum, weight_decay=decay)


def server_step(net, sgd, trained):
    """One step for {client: what it made of its model}."""
    sgd.zero_grad()
    loss = 0
    for i, theta in trained.items():
        for name, value in net(i).items():
            loss = loss + (value * (value - theta[name]).detach()).sum() / len(trained)
    loss.backward()
    sgd.step()
