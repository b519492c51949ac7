"""One row a method. Classes are named by strings and imported only when they are used."""

import importlib
import importlib.metadata
import warnings
from dataclasses import dataclass
from typing import Any, Literal

from fedpers.core.errors import ConfigError, unknown

GROUP = "fedpers.methods"  # entry points by which other packages add their methods


@dataclass(frozen=True)
class Method:
    """A method: its two halves, its config dataclass and where it comes from."""

    name: str
    strategy: str  # "module:Class"
    client: str
    config: str
    paper: str
    status: str  # verified | runs | untried: docs/adr/0009
    summary: str = ""
    # Whether clients may each make fewer epochs of `local` than others (systems.partial): then these settings
    # say all that a client trains, no server counts its steps, and a reply is as large as its order.
    partial_work: bool = False
    # What clients' models must have in common (model=groups): the method uses nothing else of them together.
    common: Literal["all", "head", "features", "task"] = "all"
    public: bool = False  # whether its server needs samples that all know (data.public, data.public_file)

    def strategy_class(self) -> Any:
        """The server half."""
        return _resolve(self.strategy, self.name)

    def client_class(self) -> Any:
        """The client half."""
        return _resolve(self.client, self.name)

    def config_class(self) -> Any:
        """The dataclass of its hyper-parameters."""
        return _resolve(self.config, self.name)


def _resolve(spec: str, owner: str) -> Any:
    """The object that "module:Class" names.

    Raises:
        ConfigError: there is no such module or class.
    """
    module, _, name = spec.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"method '{owner}': cannot import {spec}: {error}") from error
    except AttributeError as error:
        raise ConfigError(f"method '{owner}': {module} has no {name}") from error


def _row(name: str, stem: str, paper: str, status: str, summary: str, **more: Any) -> Method:
    """A row whose files and classes are named as usual."""
    server, client = f"fedpers.strategies.{name}:{stem}", f"fedpers.clients.{name}:{stem}"
    return Method(name, server, f"{client}Client", f"{client}Config", paper, status, summary, **more)


# fmt: off
METHODS: dict[str, Method] = {row.name: row for row in (
    Method("local", "fedpers.strategies.local:Local", "fedpers.clients.local:LocalClient",
           "fedpers.clients.local:LocalTrainingConfig",
           "no federation: what a method must beat", "verified", "each client trains alone",
           common="task"),
    _row("central", "Central", "no federation: all data in one place", "runs",
         "one model, trained on all clients' samples; simulations only"),
    _row("fedavg", "FedAvg", "McMahan et al., AISTATS 2017", "verified",
         "one model for all, averaged by sample counts", partial_work=True),
    _row("fedper", "FedPer", "Arivazhagan et al., arXiv 1912.00818", "verified",
         "shared body, personal head, trained together", partial_work=True),
    _row("fedfomo", "FedFomo", "Zhang et al., ICLR 2021", "verified",
         "moves towards the models that do better on samples kept back"),
    _row("perfedavg", "PerFedAvg", "Fallah et al., NeurIPS 2020", "verified",
         "one model for all, good after one step of adaptation"),
    _row("federico", "FedeRiCo", "Sui et al., arXiv 2210.06597", "verified",
         "own models; each client trains and mixes those of others that explain its data"),
    _row("cfl", "CFL", "Sattler et al., arXiv 1910.01991", "verified",
         "FedAvg in clusters that are cut in two where members disagree"),
    _row("ditto", "Ditto", "Li et al., ICML 2021", "verified",
         "FedAvg, and a personal model with a proximal term to the global one", partial_work=True),
    _row("fedem", "FedEM", "Marfoq et al., NeurIPS 2021", "verified",
         "each client a mixture of shared components, fitted by federated EM"),
    _row("lgfedavg", "LGFedAvg", "Liang et al., arXiv 2001.01523", "verified",
         "private body, shared head", partial_work=True, common="head"),
    _row("fedalt", "FedAlt", "Pillutla et al., ICML 2022", "verified",
         "a personal part, trained before the shared one"),
    _row("fedsim", "FedSim", "Pillutla et al., ICML 2022", "verified",
         "a personal part, trained together with the shared one", partial_work=True),
    _row("fedrep", "FedRep", "Collins et al., ICML 2021", "verified",
         "many head steps, then a few on the shared body"),
    _row("fedbabu", "FedBABU", "Oh et al., ICLR 2022", "verified",
         "the body alone is trained and averaged, the head never"),
    _row("fedrecon", "FedRecon", "Singhal et al., NeurIPS 2021", "verified",
         "the head is reconstructed, then the body updated under it"),
    _row("pfedme", "PFedMe", "Dinh et al., NeurIPS 2020", "verified",
         "personal models from Moreau envelopes of the clients' losses"),
    _row("pflego", "PFLEGO", "Nikoloutsopoulos et al., arXiv 2202.09848", "verified",
         "exact gradient of the shared body after personal head steps"),
    _row("fedsoft", "FedSoft", "Ruan, Joe-Wong, AAAI 2022", "verified",
         "several centers, one personal model with a proximal term to each by importance"),
    _row("ifca", "IFCA", "Ghosh et al., NeurIPS 2020", "verified",
         "hard clusters: each client trains the center of least loss"),
    _row("fedprox", "FedProx", "Li et al., MLSys 2020", "verified",
         "FedAvg whose local training has a proximal term to the global model", partial_work=True),
    _row("lsgd", "LSGD", "Hanzely, Zhao, Kolar, arXiv 2102.09743", "verified",
         "local SGD on any objective of the unified framework"),
    _row("acd", "ACD", "Hanzely, Zhao, Kolar, arXiv 2102.09743", "verified",
         "accelerated block coordinate descent, whole gradients"),
    _row("asvrcd", "ASVRCD", "Hanzely, Zhao, Kolar, arXiv 2102.09743", "verified",
         "accelerated, one sample a step, control variates"),
    _row("ascd", "ASCD", "Hanzely, Zhao, Kolar, arXiv 2102.09743", "verified",
         "accelerated, one sample a step, no control variates"),
    _row("scd", "SCD", "Hanzely, Zhao, Kolar, arXiv 2102.09743", "verified",
         "block coordinate descent, one sample a step"),
    _row("svrcd", "SVRCD", "Hanzely, Zhao, Kolar, arXiv 2102.09743", "verified",
         "one sample a step, control variates, no momentum"),
    _row("l2sgd", "L2SGD", "Hanzely, Richtarik, arXiv 2002.05516", "verified",
         "own models moved towards their mean at random times, control variates"),
    Method("apfl", "fedpers.strategies.lsgd:LSGD", "fedpers.clients.lsgd:LSGDClient",
           "fedpers.clients.lsgd:APFLConfig", "Deng, Kamani, Mahdavi, arXiv 2003.13461", "runs",
           "mixture of a shared and a private model (lsgd on apfl2)"),
    Method("fedres", "fedpers.strategies.lsgd:LSGD", "fedpers.clients.lsgd:LSGDClient",
           "fedpers.clients.lsgd:FedResConfig", "Agarwal, Langford, Wei, arXiv 2003.12880", "runs",
           "sum of a shared and a private model (lsgd on fr)"),
    _row("ppfl", "PPFL", "Di, Yang, Ye, Chang, arXiv 2310.14337", "verified",
         "K canonical models, blended by each client's membership vector"),
    Method("fedavg_ft", "fedpers.strategies.fedavg:FedAvg", "fedpers.clients.fedavg:FedAvgClient",
           "fedpers.clients.fedavg:FedAvgFTConfig", "McMahan et al., AISTATS 2017", "verified",
           "FedAvg, fine-tuned by each client before it predicts", partial_work=True),
    *(Method(name.lower(), "fedpers.strategies.fedopt:FedOpt", "fedpers.clients.fedopt:FedOptClient",
             f"fedpers.clients.fedopt:{name}Config", paper, "verified", summary, partial_work=True)
      for name, paper, summary in (
        ("FedAvgM", "Hsu, Qi, Brown, arXiv 1909.06335", "FedAvg with momentum on the server"),
        ("FedAdam", "Reddi et al., ICLR 2021", "FedAvg whose server takes steps of Adam"),
        ("FedYogi", "Reddi et al., ICLR 2021", "FedAvg whose server takes steps of Yogi"))),
    _row("scaffold", "Scaffold", "Karimireddy et al., ICML 2020", "verified",
         "FedAvg with control variates against the drift of clients", partial_work=True),
    _row("fedbn", "FedBN", "Li et al., ICLR 2021", "runs",
         "FedAvg of all layers but those that normalise", partial_work=True),
    _row("fedrod", "FedRoD", "Chen, Chao, ICLR 2022", "verified",
         "a generic model on a balanced loss, and a personal head"),
    _row("fedproto", "FedProto", "Tan et al., AAAI 2022", "verified",
         "clients share the mean features of their classes, and no model", common="features"),
    _row("fedtgp", "FedTGP", "Zhang et al., AAAI 2024", "runs",
         "FedProto whose server trains prototypes that lie apart", common="features"),
    _row("fedmd", "FedMD", "Li, Wang, arXiv 1910.03581", "runs",
         "unlike models that learn from the mean of their scores on public samples", common="task",
         public=True),
    _row("moon", "Moon", "Li, He, Song, CVPR 2021", "verified",
         "FedAvg whose clients keep their features near the global model's", partial_work=True),
    _row("fedamp", "FedAMP", "Huang et al., AAAI 2021", "verified",
         "own models, pulled towards a mixture of those that are like them"),
    _row("pfedgraph", "PFedGraph", "Ye et al., ICML 2023", "runs",
         "own models, each started from a mixture of those that moved in its direction"),
    _row("pfedhn", "PFedHN", "Shamsian et al., ICML 2021", "runs",
         "a hypernetwork on the server makes each client's model from an embedding of the client"),
    _row("fedala", "FedALA", "Zhang et al., AAAI 2023", "verified",
         "mixes the global model into the own one, entry by entry, before training"),
    _row("feddbe", "FedDBE", "Zhang et al., NeurIPS 2023", "runs",
         "FedAvg on features that each client shifts by a memory of its own"),
    _row("knnper", "KNNPer", "Marfoq et al., ICML 2022", "runs",
         "FedAvg whose clients also ask the nearest of their own samples"),
    _row("fedpac", "FedPAC", "Xu, Tong, Huang, ICLR 2023", "runs",
         "shared body near class prototypes, heads combined by how alike features are"),
    _row("fedas", "FedAS", "Yang, Huang, Ye, CVPR 2024", "runs",
         "the shared body is first moved to the features that a client's head knows"),
    _row("gpfl", "GPFL", "Zhang et al., ICCV 2023", "runs",
         "class embeddings and a valve for all, that turn features to a client's own classes"),
    _row("fedcp", "FedCP", "Zhang et al., KDD 2023", "runs",
         "a policy tells for each sample which features a personal and a shared head see", partial_work=True),
)}
# fmt: on


def methods() -> dict[str, Method]:
    """Our methods and those of other installed packages, by name.

    A package whose entry cannot be loaded is listed with status "broken" and warned about once.
    """
    table = dict(METHODS)
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name in METHODS:
            _warn_once(
                f"the entry point {GROUP}: {entry.name} = {entry.value} is left out: "
                f"fedpers has a method of that name"
            )
        else:
            table[entry.name] = _load(entry)
    return table


def _load(entry: importlib.metadata.EntryPoint) -> Method:
    try:
        row = entry.load()
        if isinstance(row, Method):
            return row
        problem = f"it is a {type(row).__name__}, not a fedpers.config.registry.Method"
    except Exception as error:  # whatever a foreign module does while it is imported
        problem = f"{type(error).__name__}: {error}"
    _warn_once(f"the method '{entry.name}' ({entry.value}) cannot be used: {problem}")
    return Method(entry.name, "", "", "", entry.value, "broken", problem)


_warned: set[str] = set()


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def method(name: str) -> Method:
    """The row of a method.

    Raises:
        ConfigError: no method has that name, or the package that brings it is broken.
    """
    table = METHODS if name in METHODS else methods()  # to look at what is installed takes milliseconds
    if name not in table:
        raise ConfigError(unknown("method", name, table))
    if table[name].status == "broken":
        raise ConfigError(f"method '{name}' cannot be used: {table[name].summary}")
    return table[name]
