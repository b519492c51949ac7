#!/usr/bin/env bash
# torch 2.13.0: the first call of torch.func.grad or vjp imports the whole compiler (torch._dynamo, and sympy with it),
# and so do the constructor of an optimiser and FlopCounterMode; backward(), vmap and jvp do not.
#
# Expected: eager code that nobody compiles needs no compiler, and the transforms of torch.func import alike.
# Seen: after one gradient the compiler is there, in each process that takes a gradient this way. Each worker of a
# simulation pays for it at its first step: about two seconds of processor time and 70 MB here.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet "torch==2.13.0" "numpy<3"
cat > "$here/look.py" <<'PY'
import sys

import torch


def square(v):
    return (v * v).sum()


v = torch.ones(3)
match sys.argv[1]:
    case "backward":
        square(v.requires_grad_()).backward()
    case "vmap":
        torch.func.vmap(square)(v[None])
    case "vjp":
        torch.func.vjp(square, v)[1](torch.tensor(1.0))
    case "jvp":
        torch.func.jvp(square, (v,), (v,))
    case "grad":
        torch.func.grad(square)(v)
    case "SGD":
        torch.optim.SGD([torch.nn.Parameter(v)], lr=0.1)
    case "FlopCounterMode":
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False):
            square(v)
print(sys.argv[1], *("no" if name not in sys.modules else "yes" for name in ("torch._dynamo", "sympy")))
PY
for what in backward vmap vjp jvp grad SGD FlopCounterMode; do
  "$here/venv/bin/python" "$here/look.py" "$what" 2> "$here/warnings"
done | tee "$here/seen"
diff "$here/seen" - <<'SEEN'
backward no no
vmap no no
vjp yes yes
jvp no no
grad yes yes
SGD yes yes
FlopCounterMode yes yes
SEEN
echo "torch 2.13.0 does as written above"
