"""The columns of each table of benchmarks, with its title and what has to be known to read it."""

from fedpers.bench.cells import Columns, each, mb, ms, share, theirs, times

ROUNDS: Columns = {
    "work": "{model} M={M} C={C}",
    "engine": "{engine}",
    "processes": "{processes}",
    "ms a round": ms("seconds"),
    "times ours": times("times_ours"),
    "peak MB": "{peak_mb:.0f}",
    "of the cores' GFLOP/s": "{share_of_ceiling:.0%} of {ceiling_gflops:.0f}",
}
SUITES: dict[str, tuple[str, str, Columns]] = {
    "rounds": (
        "A round of FedAvg",
        "C of M clients, 200 samples each, one epoch of batches of 20, then the average. *auto*, "
        "*loop*, *stack*: ours; *tight*: the best plain loop, with no server; *flower-grid*: stock "
        "`flwr` FedAvg and a stock ClientApp on our in-process grid; *no-kernels*: auto by autograd alone. "
        "GFLOP/s count all products of forward and backward passes, though ours leave out derivatives of a "
        "larger convolution that are zero.",
        ROUNDS,
    ),
    "methods": (
        "Each method in process and on Ray",
        "100 clients, digits; the same command with `engine=inprocess`, with as many workers as cores, "
        "with `engine=ray`, which sends each of as many actors one message for a bundle of clients, and "
        "with `engine.chunk=1`, a message a client as Flower has it. Ratios to the faster of ours; medians "
        "of the second half of 20 rounds.",
        {
            "model": "{model}",
            "method": "{method}",
            "in process, ms a round": ms("inprocess"),
            "with workers": ms("workers"),
            "Ray, bundles": ms("ray"),
            "ratio": times("times_ray"),
            "Ray, a message a client": ms("messages"),
            "ratio ": times("times_messages"),
        },
    ),
    "profile": (
        "Where a round of each method goes",
        "100 clients, 200 samples of 784 inputs each, so many of them in a round (all, if a method takes "
        "all); batches of 20, else the defaults; one process, one thread, CPU time, after 40 rounds. "
        "*Floor*: the gradients that the clients take, the models that they look at, their head steps, and "
        "the models that a server compares or mixes each with each, at the rate of "
        "a matrix product measured between these rounds (medians both). *Kernel*: in C; *torch*: operators, "
        "autograd, vmap; *Flower*: messages, checks, the strategy; *storage*: clients' states; *Python*: all "
        "else. Shares are by cProfile, whose own cost is taken off.",
        {
            "model": "{model}",
            "method": "{method}",
            "clients a round": "{clients}",
            "ms of CPU": ms("cpu"),
            "floor, ms": ms("floor"),
            "times the floor": times("times"),
            **{part: share(part) for part in ("kernel", "torch", "Python", "Flower", "storage")},
        },
    ),
    "libraries": (
        "Beside PFLlib and FL-bench",
        "100 clients with 200 samples of 784 inputs each, or 5,000 with 20; 20 clients in a round, one epoch "
        "of batches of 20; medians of 40 rounds, of convolutions ten, of 5,000 clients three. All have the "
        "same layers: one of 100 hidden units (*mlp*, PFLlib's), two of 200 (FL-bench's), the FedAvg paper's "
        "CNN without padding. "
        "Both run as they are shipped, from their user's checkouts, in one process and thread each, without "
        "evaluations; *in RAM*: PFLlib, which "
        "reads a client's file each time, made to keep it. FL-bench says the mean of all rounds, in "
        "hundredths of a second. Each library has its own APFL, FedFomo, Per-FedAvg, pFedMe, CFL and FedEM, "
        "with its own number of inner steps or models: their ratios say what a user waits for, not which "
        "arithmetic is faster. *failed*: there these methods need a model with a body below its head. With "
        "5,000 clients PFLlib keeps a model for each of them. *lenet* has LeNet's layers without padding; in "
        "PFLlib it stands in place of its CNN, as its own LeNet normalises and drops out.",
        {
            "processor": "{processor}",
            "model": "{model}",
            "method": "{method}",
            "clients": lambda r: f"{r['clients']:,}",
            "ms a round": ms("ours"),
            "PFLlib": theirs("pflib"),
            "in RAM": theirs("pflib_ram"),
            "FL-bench": theirs("fl_bench"),
            "peak MB": mb("ours_mb"),
            "PFLlib's": mb("pflib_mb"),
            "FL-bench's": mb("fl_bench_mb"),
        },
    ),
    "population": (
        "A population of ten million",
        "FedPer with private heads of 20 KB, 1,000 clients a round, out of so many clients: in processes of "
        "one machine, and on nodes of a Ray cluster of processes there, with an actor a CPU. Of a thousand "
        "all are met again in each round; of millions nearly all are new, and draw their head first. "
        "*First round*: from the process's start to its end, data and Ray's start among it. RAM is of all "
        "processes together. In turns, the later half of 20 rounds each. Four share two cores.",
        {
            "clients": "{clients:,}",
            "on": "{count} {way}",
            "CPUs each": "{cpus}",
            "first round after": "{startup:.1f} s",
            "ms a round": ms("seconds"),
            "rounds a second": lambda r: f"{1 / r['seconds']:.3g}",
            "peak MB": "{peak_mb:.0f}",
            "MB on disk": "{disk_mb:.0f}",
        },
    ),
    "evaluation": (
        "Evaluation",
        "500 personal models (shared body, own head), 50 test samples each.",
        {
            "model": "{model}",
            "engine": "{engine}",
            "ms": ms("seconds"),
            "faster than a DataLoader loop": times("times"),
        },
    ),
    "pflego_cost": (
        "A round of PFLEGO",
        "PFLEGO's Table 3 on Fashion-MNIST High-Pers (784-200 body, 20 of 100 clients a round, full "
        "batches) and the demo (digits, 64-200 body, 20 clients), by τ, without evaluations; one process, one"
        " thread. FedPer with as many full-batch steps on the whole model, and as the demo has it. Medians.",
        {
            "setting": "{setting}",
            "way": "{way}",
            "ms of CPU a round": ms("cpu"),
            "times PFLEGO, τ=50": times("times"),
        },
    ),
    "convolutions": (
        "The parts of a larger CNN",
        "A step on the FedAvg paper's CNN, 20 images, one thread: each layer forward and back, convolutions "
        "with their ReLU and maxima, by torch (oneDNN) and by our kernels; their sum, and a step of local "
        "training. *Peak*: multiply-adds that stay in registers. GFLOP/s are counted as if derivatives that "
        "are zero were multiplied too: on the way back most of them are.",
        {
            "part": "{part}",
            "ms of CPU, torch": ms("torch"),
            "ours": ms("seconds"),
            "times ours": times("times"),
            "GFLOP/s of ours": lambda r: (
                "" if r["gflops"] is None else f"{r['gflops']:.0f} of {r['peak']:.0f}"
            ),
        },
    ),
    "start": (
        "From a command to the end of its first round",
        "Each in a process of its own, and `import torch` alone in turns with it; seconds, medians.",
        {"run": "{run}", "first round after": "{seconds:.1f} s", "`import torch`": "{torch:.1f} s"},
    ),
    "gpu": (
        "One GPU",
        "pfl-research's CIFAR-10 benchmark: 1,000 users of 50 images, 50 a round, 5 local steps of "
        "batch 10, 1,500 rounds, its simple_cnn without dropout. *tried*: ms a round of each way to compute "
        "products; the fastest but bf16 makes all rounds. Where there are fewer than 50,000 images, users "
        "share them, so the accuracy is not the benchmark's.",
        {
            "device": "{device}",
            "way": "{way}",
            "rounds": "{rounds}",
            "seconds in all": "{seconds:.0f}",
            "ms a round": ms("median_round"),
            "tried": each("probed"),
            "peak MB of the GPU": mb("peak_gpu_mb"),
            "accuracy": "{accuracy:.3f} ({data})",
        },
    ),
    "cuda": (
        "Rounds on one GPU",
        "FedAvg with five networks, then every method with an MLP of 200 units (FedBN: ResNet-18): 100 "
        "clients of 200 samples, all in a round, batches of 20. *stack*: ours as it comes; *tight*: the best "
        "plain loop on the same GPU with the same arithmetic, with no server.",
        {
            "device": "{device}",
            "model": "{model}",
            "method": "{method}",
            "way": "{way}",
            "products": "{precision}",
            "ms a round": ms("seconds"),
            "times the stack": times("times"),
            "peak MB of the GPU": mb("peak_gpu_mb"),
        },
    ),
    "devices": (
        "Several GPUs",
        "FedAvg with an MLP of two layers of 5,000 units, 100 clients of 200 samples, all in a round, TF32: "
        "on one GPU and on more of the same machine, a process each.",
        {"GPUs": "{count}", "ms a round": ms("seconds"), "times one": times("times")},
    ),
}
