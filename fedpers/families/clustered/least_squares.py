"""Exact minimisers, where there are any."""

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.errors import ConfigError
from fedpers.core.params import Params
from fedpers.learning.model import HEAD, Model


def require_least_squares(model: Model) -> None:
    """Accept linear regression, which `least_squares` can solve.

    Raises:
        ConfigError: the model is another.
    """
    if model.name != "linear" or model.task != "regression":
        raise ConfigError(
            f"an exact solution needs linear regression, not model={model.name} for "
            f"{model.task}; use method.solver=local"
        )


def least_squares(model: Model, data: Data, lam: float, ubar: float | Tensor, cbar: Params) -> Params:
    """argmin over w of the mean squared error plus lam(½ū‖w‖² - ⟨w, c̄⟩), for linear regression.

    Solves (2/(nK) XᵀX + lam·ū I) W = 2/(nK) XᵀY + lam·C̄; K is the number of outputs, X has a column
    of ones if the model has an intercept. Singular for lam = 0 and fewer samples than weights.
    """
    x, y = model.body({}, data.x), data.y.reshape(len(data), -1)
    if model.bias:
        x = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    weighted = x * (2 * data.mask / (data.num * y.shape[1]))[:, None]
    left = weighted.mT @ x + lam * ubar * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    pulls = [cbar[HEAD + "weight"].mT]
    if model.bias:
        pulls.append(cbar[HEAD + "bias"][None])
    solution = torch.linalg.solve(left, weighted.mT @ y.to(x.dtype) + lam * torch.cat(pulls))
    width = model.num_features
    found = {HEAD + "weight": solution[:width].mT}
    return found | ({HEAD + "bias": solution[width]} if model.bias else {})
