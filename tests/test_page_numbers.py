"""Numbers in the text of pages that are computed from results files: the file's and the page's agree."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.computed import record, stand_on, values

CHECKS: list[tuple[str, Callable[[], Iterator[str]]]] = []
Values = dict[tuple[str, str], np.ndarray]


def on(page: str) -> Callable:
    """The strings that the function computes from files have to stand on this page of docs/methods."""

    def add(check: Callable[[], Iterator[str]]) -> Callable[[], Iterator[str]]:
        CHECKS.append((page, check))
        return check

    return add


@pytest.mark.parametrize(("page", "check"), CHECKS, ids=lambda x: getattr(x, "__name__", x))
def test_a_page_has_what_is_computed_from_its_files(page, check):
    stand_on(f"methods/{page}", check)


def of(name: str) -> Values:
    """{(row's name, column): values by seed}; names without a method before a setting."""
    return {(row.rpartition(" ")[2], column): v for (row, column), v in values(name).items()}


def papers(name: str) -> dict[tuple[str, str], float]:
    return {(r["name"].rpartition(" ")[2], r["column"]): r["paper"] for r in record(name)["results"]}


def spread(values: np.ndarray) -> str:
    return f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"


def listed(values: np.ndarray, digits: int, last: str = ", ") -> str:
    words = [f"{v:.{digits}f}" for v in values]
    return ", ".join(words[:-1]) + last + words[-1]


# ---- FedSoft ------------------------------------------------------------------------------------


@on("fedsoft-results")
def fedsoft_better_by_other():
    ours, theirs = of("fedsoft_table1_synthetic"), papers("fedsoft_table1_synthetic")
    for mixture in ("10:90", "30:70", "linear", "random"):
        for source in ("θ0", "θ1"):
            better, other = (
                ("fedsoft", f"{mixture} {source}, {which} center") for which in ("better", "other")
            )
            paper = min(theirs[better], theirs[other]) / max(theirs[better], theirs[other])
            yield f"| {mixture} | {source} | {listed(ours[better] / ours[other], 2)} | {paper:.2f} |"
        assert (ours["fedsoft", f"{mixture} sources with a center of their own, share"] == 1).all()
    for source in ("θ0", "θ1"):
        errors = {
            m: ours["fedsoft", f"{m} {source}, better center"].mean() for m in ("10:90", "linear", "random")
        }
        assert ours["fedsoft", f"30:70 {source}, better center"].mean() > max(errors.values())


@on("fedsoft-results")
def fedsoft_lambdas():
    ours = of("fedsoft_table5_synthetic")
    for lam in ("0", "0.1", "1", "10", "100"):
        found = {c.removeprefix(f"λ={lam} "): v for (_, c), v in ours.items() if c.startswith(f"λ={lam} ")}
        errors = [spread(found[f"{s}, {w} center"]) for s in ("θ0", "θ1") for w in ("better", "other")]
        clients, u = found["clients on their training data"], found["mean error of u"]
        yield f"| {lam} | {' | '.join(errors)} | {spread(clients)} | {u.mean():.3f} |"


@on("fedsoft-results")
def fedsoft_variances():
    ours, theirs = of("fedsoft_table6_divergence"), papers("fedsoft_table6_divergence")
    for variance in (1, 10, 50, 100):
        names = ["θ0, better center", "θ1, better center", "clients on their training data, 5 x the table"]
        keys = [("fedsoft", f"variance {variance} {name}") for name in names]
        cells = " | ".join(f"{spread(ours[k])} | {theirs[k]:.1f}" for k in keys)
        u = ours["fedsoft", f"variance {variance} mean error of u"].mean()
        yield f"| {variance} | {cells} | {ours[keys[-1]].mean() / variance:.2f} | {u:.3f} |"


@on("fedsoft-results")
def fedsoft_eight_sources():
    ours = of("fedsoft_table3")
    means = [v.mean() for (_, c), v in ours.items() if c.endswith(" center")]
    yield f"by {ours['fedsoft', 'centers' + chr(39) + ' spread, mean over sources'].mean():.1f} in the mean"
    yield f"mean errors are {min(means):.0f} to {max(means):.0f}"
    yield f"error of u is {ours['fedsoft', 'mean error of u'].mean():.2f}"


@on("fedsoft-results")
def fedsoft_shares_over_rounds():
    five, ten, fifty = (of("fedsoft_fig1")["fedsoft", f"round {t}, mean error of u"] for t in (5, 10, 50))
    yield f"{five.mean():.2f} after 5 rounds ({five.min():.2f} to {five.max():.2f})"
    yield f"{ten.mean():.2f} after 10 ({ten.min():.2f} to {ten.max():.2f}) and {fifty.mean():.2f} after 50"


@on("fedsoft-results")
def fedsoft_beside_ifca():
    ours = of("fedsoft_fig2_synthetic")
    u = {m: ours[m, "mean error of u"] for m in ("fedsoft", "ifca")}
    centers = {m: np.r_[ours[m, "θ0, better center"], ours[m, "θ1, better center"]] for m in u}
    clients = {m: ours[m, "clients on their training data"] for m in u}
    assert {f"{v:.2f}" for v in u["ifca"]} == {"0.10"} and (clients["ifca"] < clients["fedsoft"]).all()
    yield f"(errors {centers['ifca'].min():.1f} to {centers['ifca'].max():.1f}, where"
    yield f"(errors of u {u['fedsoft'].min():.2f} to {u['fedsoft'].max():.2f})"
    yield f"(errors {centers['fedsoft'].min():.0f} to {centers['fedsoft'].max():.0f})"
    yield f"({clients['ifca'].mean():.1f} beside {clients['fedsoft'].mean():.1f} in the mean)"


@on("fedsoft-results")
def fedsoft_new_clients():
    ours = of("fedsoft_new_clients")
    ratios = {m: ours[m, "loss, new clients"] / ours[m, "loss"] for m in ("fedsoft", "ifca", "fedem")}
    assert np.ptp(ratios["fedsoft"]) < min(np.ptp(ratios["ifca"]), np.ptp(ratios["fedem"]))
    yield f"FedSoft's new clients have {listed(ratios['fedsoft'], 2, ' and ')} times the MSE"
    yield f"IFCA's {listed(ratios['ifca'], 2, ' and ')}"
    yield f"largest weight, {listed(ratios['fedem'], 2, ' and ')}"
    fedsoft, ifca, fedem = (ours[m, "loss, new clients"].mean() for m in ratios)
    yield f"in the mean {fedsoft:.1f} beside {ifca:.1f} with IFCA and {fedem:.1f} with FedEM"


def letters(*names: str) -> dict[str, np.ndarray]:
    """{method: [seeds, 3]}: the best center on lower and upper case, and clients on their training data."""
    columns = ("lower, best center", "upper, best center", "clients on their training data")
    files = [of(name) for name in names]
    methods = set.intersection(*({m for m, _ in found} for found in files))
    return {m: np.concatenate([[f[m, f"10:90 {c}"] for c in columns] for f in files], 1).T for m in methods}


@on("fedsoft-letters")
def fedsoft_on_letters_with_the_released_head():
    found = letters("fedsoft_table2_letters", "fedsoft_table2_letters_seeds")
    fedsoft, ifca, fedavg = found["fedsoft"], found["ifca"], found["fedavg"]
    yield f"clients fit {listed(fedsoft[:, 2], 1, ' and ')} % of their training data"
    yield f"IFCA's {listed(ifca[:, 2], 1, ' and ')}: FedSoft is above by"
    yield f"above by {listed(fedsoft[:, 2] - ifca[:, 2], 0, ' and ')} points"
    yield f"classify {listed(fedsoft[:, :2].mean(1), 1, ' and ')} % of the held-out letters"
    yield f"IFCA's {listed(ifca[:, :2].mean(1), 1, ' and ')}, FedAvg's"
    yield f"one model {listed(fedavg[:, :2].mean(1), 1, ' and ')}."
    gaps = (fedsoft - ifca)[:, :2].mean(1)
    assert (gaps > 0).all() and (gaps[1:] < 2).all() and (fedsoft < ifca)[1:, 1].all()


@on("fedsoft-letters")
def fedsoft_on_letters_with_logits():
    found = letters("fedsoft_table2_letters_logits", "fedsoft_table2_letters_logits_seeds")
    gaps = (found["ifca"] - found["fedsoft"])[:, :2]
    assert (gaps > 0).all()
    yield f"by {listed(gaps.mean(1), 1, ' and ')} points on seeds 0, 1, 2"


@on("fedsoft-letters")
def fedsoft_on_letters_at_a_larger_rate():
    logits, released = letters("fedsoft_table2_femnist_logits"), letters("fedsoft_table2_femnist_released")
    gaps = np.array([logits[m] - logits["fedsoft"] for m in ("fedavg", "fedem", "ifca")])[:, 0, :2]
    yield f"{gaps.min():.0f} to {gaps.max():.0f} points below all others"
    lost = np.array([logits[m] - released[m] for m in logits])[:, 0, :2]
    yield f"lose {lost.min():.0f} to {lost.max():.0f} points"
    assert max(logits, key=lambda m: logits[m][0, :2].mean()) == "fedavg"
    assert max(released, key=lambda m: released[m][0, :2].mean()) == "ifca"
    assert max(released, key=lambda m: released[m][0, 2]) == "ifca" and logits["fedsoft"][0, 2] == 100


# ---- PPFL ---------------------------------------------------------------------------------------


@on("ppfl-results")
def ppfl_and_fedem():
    """Claims about all seeds; and Table 1 beside the paper."""
    for way in ("_fresh", "_kept_constant", "_fresh_constant", ""):
        ours = of(f"ppfl_table1_synthetic{way}")
        fedem, ppfl = (ours[m, "Synthetic"] for m in ("fedem", "ppfl"))
        assert (fedem > ppfl).all() if way else fedem.mean() > ppfl.mean()
    above = {m: v.mean() - papers("ppfl_table1_synthetic")[m, c] for (m, c), v in ours.items()}
    assert max(abs(above["fedavg"]), abs(above["local"])) < 1.1 < min(above["fedem"], above["ppfl"])
    yield "within 1.1 points of the paper"
    good = np.sort(ppfl)[1:]
    assert (fedem > ppfl).sum() == 4 and len(ppfl) == 5
    yield f"FedEM is {fedem.mean() - ppfl.mean():.1f} points above PPFL in the mean, and on four of"
    yield f"PPFL ends at {good[0]:.1f} to {good[-1]:.1f} on four seeds and at {ppfl.min():.1f} on the fifth"


@on("ppfl-results")
def ppfl_memberships():
    (far,) = of("ppfl_fig11_recovery").values()
    accuracy = of("ppfl_fig8_sweep")["method.num_canonical=3", "accuracy"]
    assert far.argmax() == accuracy.argmin() == 4 and {f"{v:.2f}" for v in far[:4]} == {"0.10"}
    yield f"0.10 on four seeds and {far[4]:.2f} on the fifth"


@on("ppfl-results")
def ppfl_with_more_models():
    *_, three, four, five, six = (
        of("ppfl_fig8_sweep")[f"method.num_canonical={k}", "accuracy"] for k in range(1, 7)
    )
    most = max(abs(more - three)[:4].max() for more in (four, five, six))
    yield f"at most {most:.1f} points; on the fifth three models end at {three[4]:.2f}, four at {four[4]:.2f}"
    last, random = (
        of("ppfl_table1_synthetic_rbcd")[f"method.output={o}", "Synthetic"] for o in ("last", "random")
    )
    yield f"iterate is at {listed(last, 1, ' and ')}, where"
    yield f"ends at {listed(three, 1, ' and ')} ("
    yield f"is at {listed(random, 1, ' and ')}, because"


@on("ppfl-images")
def ppfl_on_cifar10():
    step, constant = (
        {m: v[0] for (m, _), v in of(f"ppfl_table1_cifar10{x}").items()} for x in ("", "_constant")
    )
    for found in (step, constant):
        assert sorted(found, key=found.__getitem__)[-2:] == ["fedem", "ppfl"]
        yield f"{found['ppfl'] - found['fedem']:.1f} points behind"
    gains = {m: step[m] - constant[m] for m in step}
    assert [m for m in gains if gains[m] > 0] == ["fedavg"] and min(gains, key=gains.get) == "cfl"
    yield f"({constant['fedavg']:.1f} to {step['fedavg']:.1f})"
    yield f"({constant['cfl']:.1f} to {step['cfl']:.1f})"


# ---- PFLEGO -------------------------------------------------------------------------------------


@on("pflego")
def pflego_costs():
    rows = {(r["setting"], r["way"]): r["cpu"] for r in record("pflego_cost")["rows"]}
    fashion = {way: cpu for (setting, way), cpu in rows.items() if setting == "fashion"}
    demo = {way: cpu for (setting, way), cpu in rows.items() if setting == "demo"}
    yield f"τ = 50 takes {fashion['pflego τ=50'] / fashion['pflego τ=1']:.1f} times the CPU time of one with"
    yield f"whole model, {fashion['fedper τ=50'] / fashion['pflego τ=50']:.0f} times that of PFLEGO"
    yield f"τ = 50 takes {demo['pflego τ=50'] / demo['pflego τ=1']:.1f} times the time of τ = 1"
    yield f"τ = 10 takes {demo['pflego τ=10'] / demo['fedper as in the demo']:.1f} times that of FedPer"


@on("pflego-results")
def pflego_baselines():
    gaps = {}
    for data in ("fashion", "mnist"):
        name = f"pflego_table1_{data}_baselines"
        theirs = papers(name)
        gaps |= {key: v[0] - theirs[key] for key, v in of(name).items()}
    (far,) = (key for key, gap in gaps.items() if abs(gap) > 1)
    assert far == ("fedrep", "MNIST No")
    yield f"which is {gaps[far]:.2f} above"
    common = [-g for (m, c), g in gaps.items() if m in ("fedavg", "fedprox", "ditto") and "High" not in c]
    yield f"are {min(common):.2f} to {max(common):.2f} below it in all four columns"


@on("pflego-results")
def pflego_on_cifar10():
    ours, theirs = of("pflego_table1_cifar10"), papers("pflego_table1_cifar10")
    gaps = [
        theirs["pflego", f"CIFAR-10 {c}"] - ours["pflego", f"CIFAR-10 {c}"][0] for c in ("High", "Med", "No")
    ]
    yield f"That is {listed(np.array(gaps), 0, ' and ')} points below the paper"
