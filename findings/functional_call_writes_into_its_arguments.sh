#!/usr/bin/env bash
# torch 2.13.0: torch.func.functional_call with nn.Embedding(max_norm=...) writes into the caller's parameters.
#
# Expected: functional_call is the stateless form of a module, so the dict of parameters that it is given stays as it is;
# and under vmap over a stack of models each model's parameters stay as they are.
# Seen: the rows that were looked up are renormalised in place, in the caller's own tensors. Each forward pass, also one
# that only evaluates, changes the model that was handed in.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet "torch==2.13.0" "numpy<3"
cat > "$here/look.py" <<'PY'
import warnings

import torch
from torch import nn
from torch.func import functional_call, vmap

warnings.filterwarnings("ignore", message=".*performance drop.*")
net = nn.Embedding(4, 3, max_norm=1.0)

one = {"weight": torch.full((4, 3), 2.0)}  # each row has norm sqrt(12) = 3.46
functional_call(net, one, (torch.tensor([1]),))
print("one model, norms of rows:", [round(v, 2) for v in one["weight"].norm(dim=1).tolist()])

stack = {"weight": torch.full((2, 4, 3), 2.0)}
vmap(lambda w, i: functional_call(net, w, (i,)))(stack, torch.tensor([[1], [2]]))
print("two models under vmap:", [[round(v, 2) for v in rows] for rows in stack["weight"].norm(dim=2).tolist()])
PY
"$here/venv/bin/python" "$here/look.py" | tee "$here/seen"
diff "$here/seen" - <<'SEEN'
one model, norms of rows: [3.46, 1.0, 3.46, 3.46]
two models under vmap: [[3.46, 1.0, 3.46, 3.46], [3.46, 3.46, 1.0, 3.46]]
SEEN
echo "torch 2.13.0 does as written above"
