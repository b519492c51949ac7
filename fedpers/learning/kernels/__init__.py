"""Dense networks without autograd: what a kernel is told, and the kernels in C."""
