"""As in test_page_numbers.py, for pages of the unified framework, of FedeRiCo, and shorter ones."""

import numpy as np
import pytest
import yaml

from fedpers.results import pages
from tests.computed import ROOT, record, stand_on, values

COORDINATE = ("scd", "ascd", "svrcd", "asvrcd")


def by_seed(name):
    """{(method, σ_h): a row a seed, in the order of the seeds}, and the names of the numeric columns."""
    found, content = {}, record(name)
    for method, sigma, _, *numbers in sorted(content["rows"]):
        found.setdefault((method, sigma), []).append(numbers)
    return {key: np.array(rows) for key, rows in found.items()}, content["columns"][3:]


def unified_figure_1():
    rows, columns = by_seed("unified-fig1")
    assert columns[:3] == ["F at 10", "F at 100", "F at 1000"]
    ends = values("unified_fig1_mx2")
    order = ("lsgd", "scd", "ascd", "svrcd", "asvrcd", "acd", "l2sgd", "pfedme")
    for sigma in (0.1, 0.3, 1.0):
        F = {m: rows[m, sigma][:, :3] for m in order}
        cells = [" ".join(f"{v:.3f}".removeprefix("0") for v in F[m].mean(0)) for m in order]
        yield f"| {sigma} | {' | '.join(cells)} |"
        acd = f"acd data.sigma_h={sigma}"
        best = ends[acd, "F"] - ends[acd, "F - F*"]
        assert (abs(ends[acd, "F - F*"]) < 1e-15).all()
        for m, most in (("scd", 0.016), ("ascd", 0.01), ("svrcd", 0.01), ("asvrcd", 0.01), ("acd", 0.01)):
            assert (F[m][:, 1:] - best[:, None] < most).all()
        if sigma < 1:
            assert all((F[m][:, 0] < F["asvrcd"][:, 0]).all() for m in ("scd", "ascd"))
        last = {m: F[m].mean(0)[2] for m in order}
        assert sorted(last, key=last.get)[-2:] == ["pfedme", "lsgd"]
    yield f"= 0.1 it ends at {rows['lsgd', 0.1][:, 2].mean():.2f}"


def unified_figure_2():
    rows, columns = by_seed("unified-fig2")
    assert columns == ["F at 100", "F at 500", "F at 1000", "F - F* at 1000"]
    for sigma in (5, 10, 15):
        F = {m: rows[m, sigma].mean(0) for m in (*COORDINATE, "lsgd")}
        for m, (*means, gap) in F.items():
            yield f"| {sigma} | `{m}` | {' | '.join(f'{v:.4f}' for v in means)} | {gap:.1e} |"
        assert F["ascd"][0] < F["asvrcd"][0] and (F["asvrcd"][2] < F["ascd"][2]) == (sigma < 15)
        assert min(F, key=lambda m: F[m][2]) == "svrcd"


def unified_rates():
    found = values("unified_rates")
    acd = [f"acd method.objective.l2={v}" for v in (0.0001, 0.001, 0.01)]
    rates = np.array([found[name, "iterations/√κ"][0] for name in acd])
    parts = np.array([found[n, "communications"][0] / found[n, "√(L_w/μ) log 1/ε"][0] for n in acd])
    yield f"iterations are {rates.min():.1f} to {rates.max():.1f} √κ"
    yield f"communications {parts.min():.2f} to {parts.max():.2f} times the bound"
    roots = [found[name, "√κ"][0] for name in acd]
    assert round((max(roots) / min(roots)) ** 2, -1) == 90


def unified_images():
    """Which optimiser has the lower F, by objective and number of classes; the same on both data sets."""
    for name in ("unified_fig3_mnist", "unified_fig3_fashion"):
        F = {n: v.mean() for (n, column), v in values(name).items() if column == "F"}
        less = set()
        for k in (2, 4, 8):
            for objective in ("mx2", "mt2", "apfl2"):
                lsgd, ascd, asvrcd = (
                    next(v for n, v in F.items() if n.startswith(f"{m} data.classes_per_client={k} ")
                         and f"name={objective} " in n)
                    for m in ("lsgd", "ascd", "asvrcd")
                )  # fmt: skip
                less |= {(objective, k)} if ascd < lsgd else set()
                assert asvrcd > ascd
        assert less == {("mx2", 4), ("mx2", 8)}
    one, ten, hundred = (
        values("unified_fig8_lambda")[f"ascd method.objective.Lambda={v}", "accuracy"]
        for v in (1.0, 10.0, 100.0)
    )
    yield f".{1000 * one.mean():.0f} (Λ = 1) and .{1000 * ten.mean():.0f} (Λ = 10)"
    seeds = np.flatnonzero(ten > one)
    yield f"10 is above 1 for three of five seeds ({seeds[0]}, {seeds[1]} and {seeds[2]})"
    assert len(seeds) == 3 and (hundred < ten).sum() == 4


def federico_beside_local():
    ours = {k: v[0] for k, v in values("federico_table1_cifar10").items()}
    paper = {(r["name"], r["column"]): r["paper"] for r in record("federico_table1_cifar10")["results"]}
    columns = [f"CIFAR-10, {g} groups" for g in (2, 3, 4)]
    gaps = [[t["federico", c] - t["local", c] for c in columns] for t in (ours, paper)]
    (a, b, c), (x, y, z) = gaps
    yield f"above Local by {a:.1f}, {b:.1f} and {c:.1f} points, less than in the paper"
    yield f"({x:.1f}, {y:.1f} and {z:.1f})"
    a, b, c = (ours["fedem", c] - ours["fedavg", c] for c in columns)
    yield f"{a:.1f}, {b:.1f} and {c:.1f} points above FedAvg"
    for column in columns:
        assert max((m for m, c in ours if c == column), key=lambda m: ours[m, column]) == "federico"


def federico_on_fashion():
    ours = values("federico_table1_fmnist")
    federico, local, fedfomo, fedavg = (
        np.array([ours[f"{m} data.num_groups={g}", "accuracy"] for g in (2, 3, 4)])
        for m in ("federico", "local", "fedfomo", "fedavg")
    )
    assert (federico > local).all() and (federico > fedfomo).sum() == federico.size - 1 == 14
    assert (fedavg < local - 10).all()
    a, b, c = (federico - local).mean(1)
    yield f"by {a:.1f}, {b:.1f} and {c:.1f} points in the mean"


def federico_figures():
    epsilon = values("federico_fig_epsilon")
    by_value = {n.partition("=")[2]: v for (n, c), v in epsilon.items() if c == "accuracy"}
    others = np.array([v for n, v in by_value.items() if n != "0.0"])
    assert (by_value["0.0"] > others).all(0).sum() == 4 and np.ptp(others.mean(1)) < 1 / 3
    beta = np.array([v for (_, c), v in values("federico_fig_momentum").items() if c == "accuracy"])
    assert np.ptp(beta.mean(1)) < 1 / 3
    memory = values("federico_fig5_memory")
    average, total = (
        {c: memory[f"federico method.memory={w}", c] for c in ("accuracy", "models used")}
        for w in ("average", "sum")
    )
    assert (average["accuracy"] > total["accuracy"]).all() and total["models used"].mean() < 1.2
    distance = values("federico_fig4_fedem")["fedem", "distance to the groups"].min()
    yield f"it is {np.floor(100 * distance) / 100:.2f} or more on each seed"
    ways = {r["way"]: r["largest"] for r in record("federico_sine")["rows"]}
    yield f"more than {100 * ways['as configured'] - 100:.1f} % above"
    yield f"up to {100 * ways['as configured, constant rate'] - 100:.0f} % larger than alone"
    yield f"up to {ways['summed, 1 round alone']:.1f} times as large"


def one_gpu():
    rows = record("cuda")["rows"]
    times = {
        (r["model"], r["precision"]): r["times"]
        for r in rows
        if r["method"] == "fedavg" and r["way"] == "tight"
    }
    lr, mlp, lenet, cnn = (times[m, "float32"] for m in ("lr", "mlp", "lenet", "cnn"))
    yield f"FedAvg is {lr:.0f} times as fast for logistic regression, {mlp:.0f} for the MLP,"
    yield f"{lenet:.0f} for LeNet, {cnn:.0f} for the CNN"
    yield f"{times['resnet18', 'float32']:.1f} for ResNet-18 ({times['resnet18', 'tf32']:.1f} in TF32)"
    ms = {r["method"]: 1000 * r["seconds"] for r in rows
          if (r["model"], r["way"], r["precision"]) == ("mlp", "stack", "float32")}  # fmt: skip
    yield f"(ASVRCD: {ms['asvrcd']:.0f} ms)"
    yield f"FedeRiCo ({ms['federico']:.0f} ms"
    assert max(ms, key=ms.get) == "asvrcd"
    yield f"Half of the methods that were measured take at most {np.median(list(ms.values())):.0f} ms"
    (gpu,) = record("gpu")["rows"]
    assert gpu["device"] == "NVIDIA H200" and gpu["rounds"] == 1500
    yield f"of {gpu['rounds']:,} rounds took {gpu['seconds']:.0f} s on one H200"


def ten_million_clients():
    rows = {(r["clients"], r["count"]): r for r in record("population")["rows"] if r["way"] == "processes"}
    more, less = rows[10**7, 1], rows[10**6, 1]
    yield f"{more['peak_mb'] - less['peak_mb']:.0f} MB more at 10⁷ clients than at 10⁶"
    yield f"{more['startup']:.1f} s to the end of the first round at 10⁷, {less['startup']:.1f} at 10⁶"
    yield f"{1000 * more['seconds']:.0f} ms at 10⁷, {1000 * less['seconds']:.0f} at 10⁶"
    yield f"and {less['peak_mb'] / 1000:.1f} GB beside it"
    two, four = rows[10**7, 2]["seconds"], rows[10**7, 4]["seconds"]
    assert round(1 - two / more["seconds"], 1) == 0.1 and four > more["seconds"]
    slower = {r["work"]: r["four to one"] for r in record("ray_nodes")["rows"]}
    yield f"an MLP {slower['mlp']:.2f}"


def a_long_deployment():
    rows = {r["process"]: [v for k, v in r.items() if "quarter" in k] for r in record("soak")["rows"]}
    yield f"is {rows['our processes on devices'][3]} kB a round"
    yield f"add {rows['SuperNodes'][3] / 3:.1f} kB each"
    disk = rows["SuperLink's database on disk"]
    yield f"by {min(disk):.0f} to {max(disk):.0f} kB a round"
    assert rows["SuperLink"][3] < 0 and rows["server app"][3] < 0


def stragglers():
    found = values("fedprox_stragglers")
    all_of = {
        (m, s, p): found[f"{m} systems.deadline_s={s} systems.partial={p}", "accuracy"]
        for m in ("fedavg", "fedprox") for s in (1.0, 3.5, 60.0) for p in (False, True)
    }  # fmt: skip
    mean = {key: v.mean() for key, v in all_of.items()}
    yield f"FedAvg has {mean['fedavg', 1.0, False]:.1f} instead of {mean['fedavg', 60.0, False]:.1f} %"
    yield f"{mean['fedavg', 1.0, True]:.1f} % if their partial work is used"
    yield f"it loses {mean['fedavg', 60.0, False] - mean['fedavg', 3.5, False]:.1f} points"
    assert all((all_of["fedprox", s, p] < v).all() for (m, s, p), v in all_of.items() if m == "fedavg")


def fedprox_chosen():
    files = ("digits", "dirichlet", "rotations", "fashion", "fashion_dirichlet", "fashion_rotations")
    (mu,) = {round(record(f"benchmark_{name}")["found"]["fedprox"]["mu"], 4) for name in files}
    yield f"validation chose μ = {mu}"
    gaps = [values(f"benchmark_{name}")["fedprox", "above fedavg"].mean() for name in files]
    assert round(max(map(abs, gaps)), 1) == 0.2


def adapters():
    found = {key: v for key, v in values("adapters").items() if key[1] == "accuracy"}
    tuned = found["fedavg_ft", "accuracy"]
    mean = {m: v.mean() for (m, _), v in found.items()}
    assert (found["federico", "accuracy"] > tuned).sum() == 2
    assert mean["fedavg"] < mean["local"] < mean["fedper"] and 0 < mean["lsgd"] - mean["local"] < 2
    assert all(mean[m] < mean["fedavg_ft"] for m in ("fedsoft", "pflego", "lsgd", "ppfl"))
    assert 0.5 < mean["ppfl"] - mean["fedavg"] < 1.5
    yield "**FedeRiCo** is above FedAvg with fine-tuning in the mean and for two of three seeds"


def hospitals():
    found = values("natural_heart_disease")
    to = {m: found[m, "above fedavg"] for m in ("ditto", "fedsoft", "federico", "pflego", "local", "central")}
    assert all((to[m] < 0).all() for m in ("federico", "pflego")) and abs(to["central"].mean()) < 0.1
    assert all(0 < to[m].mean() < 1 for m in ("ditto", "fedsoft"))
    yield f"{-to['local'].mean():.1f} points better than the hospitals' own"
    below = {m: v for (m, c), v in values("natural_movielens").items() if c == "below local"}
    assert all((below[m] > 0).all() for m in ("fedavg_ft", "ppfl", "ditto"))
    assert all((below[m] < 0).all() for m in ("pflego", "fedsoft", "federico"))


def domains_and_authors():
    office, sent140 = values("natural_office_caltech10"), values("natural_sent140")
    score = "accuracy, round chosen on validation"
    below = {m: (office["local", score] - office[m, score]).mean() for m in ("fedavg", "pflego", "ppfl")}
    yield f"FedAvg is {below['fedavg']:.1f} points below local training"
    yield f"thirty in all, is {below['pflego']:.1f} points below it. PPFL"
    yield f"{below['ppfl']:.1f} points below in the mean, which five seeds do not prove"
    assert record("natural_office_caltech10")["found"]["ppfl"]["num_canonical"] == 1
    local, fedavg, tuned, ditto = (
        f"{sent140[m, 'accuracy'].mean():.1f}" for m in ("local", "fedavg", "fedavg_ft", "ditto")
    )
    assert tuned == ditto
    yield f"Local training has {local} %, fine-tuned FedAvg and Ditto {ditto} %, FedAvg {fedavg} %"


CHECKS = [
    ("methods/unified-results", unified_figure_1),
    ("methods/unified-results", unified_figure_2),
    ("methods/unified-results", unified_rates),
    ("methods/unified-images", unified_images),
    ("methods/federico-results", federico_beside_local),
    ("methods/federico-results", federico_on_fashion),
    ("methods/federico-results", federico_figures),
    ("methods/fedprox", fedprox_chosen),
    ("performance", one_gpu),
    ("performance", ten_million_clients),
    ("deployment-rounds", a_long_deployment),
    ("systems", stragglers),
    ("adapters", adapters),
    ("natural_data", hospitals),
    ("natural_data", domains_and_authors),
]


@pytest.mark.parametrize(("page", "check"), CHECKS, ids=lambda x: getattr(x, "__name__", x))
def test_a_page_has_what_is_computed_from_its_files(page, check):
    stand_on(page, check)


def test_the_map_has_the_numbers_of_figure_2():
    (entry,) = (e for e in yaml.safe_load((ROOT / pages.MAP).read_text())["unified"] if e.get("file"))
    rows, columns = by_seed("unified-fig2")
    last = columns.index("F at 1000")
    assert entry["ours"] == ", ".join(f"{rows['asvrcd', s][:, last].mean():.3f}" for s in (5.0, 10.0))
