"""What methods of one kind send in training, for `PersonalizedClient.disclosure`."""

from fedpers.flower.privacy import Disclosure

MODEL = Disclosure("the global model after local work", delta="params", since="params")
MADE_MODEL = Disclosure(
    "the model that was made for it, after local work",
    delta="params",
    since="params",
    no_sum="each change moves the hypernetwork by the Jacobian of its client's own model",
)
MODEL_AND_MEAN = Disclosure(
    "the global model after local work; once, before it, the mean of all features",
    no_dp="the mean of a client's features is sent once, without a bound on what it reveals",
)
PART = Disclosure("the shared part after local work", delta="part", since="part")
WEIGHED_PART = Disclosure(
    "the shared part after local work, and the trace of the Fisher information of its model",
    no_dp="the trace is sent beside the shared part, without a bound on what it reveals",
    no_sum="the server weights each part by its trace; parts that clients weight themselves could be summed",
)
PART_AND_HEAD = Disclosure(
    "the shared part after local work, in which the head is the mean of the received and its own one",
    delta="part",
    since="part",
)
BODY = Disclosure("the body after local work", delta="theta", since="theta")
BODY_GRADIENT = Disclosure("the gradient of the body", delta="theta")
BODY_CHANGE = Disclosure("the change of the body", delta="part")
COMPONENTS = Disclosure("all components after local work", delta="thetas", since="thetas")
BLOCK = Disclosure("the shared block after local steps", delta="w", since="w")

NOTHING = Disclosure(
    "nothing: its replies are empty",
    no_dp="method=local sends nothing that was learned, so there is nothing to hide",
    no_sum="nothing is summed",
)
SAMPLES = Disclosure(
    "all training samples, once",
    no_dp="method=central sends the samples themselves",
    no_sum="samples are sent",
    no_devices="it would send the samples themselves",
)
CENTERS = Disclosure(
    "one model near several centers, and its importance weights u_k",
    no_dp="u_k is sent beside the model; the server draws clients by it; noise on the model does not hide it",
    no_sum="models could be summed for each center; u_k of each client is needed, as it decides who is drawn",
)
CLUSTER = Disclosure(
    "a model or a gradient, and the cluster that was chosen by the client's data",
    no_dp="the number of the chosen cluster is sent beside the model and depends on the data",
    no_sum="only within a cluster, whose members the server must know",
)
MEMBERSHIP = Disclosure(
    "the canonical models after local work, and the membership vector c_i or its gradient",
    no_dp="the server stores c_i of each client; noise on the models does not hide it",
    no_sum="models could be summed; c_i could not, as the server sends it back to its client",
)
COMPARED = Disclosure(
    "the change of its model, which the server compares with those of others",
    no_dp="the server forms clusters from single changes, so its later decisions depend on them",
    no_sum="single changes are compared",
)
PEERS = Disclosure(
    "its own model, and how much it gains from those of others",
    no_dp="its own model is handed to other clients and scored on their data; the weights are sent too",
    no_sum="single models go from client to client",
)
CORRECTED = Disclosure(
    "the change of the global model, and of a control variate",
    no_dp="the control variate is sent beside the change, and is a mean gradient itself",
)
PROTOTYPES = Disclosure(
    "the mean features of each class, and how many samples it has",
    no_dp="prototypes and numbers of samples are sent class by class, without a bound on what they reveal",
    no_sum="numbers of samples and weighted prototypes could be summed, but each client sends its own",
)
SCORES = Disclosure(
    "the scores of public samples by its own model",
    no_dp="scores of single samples are sent, without a bound on what they reveal of the client's own",
)
HEAD_AND_PROTOTYPES = Disclosure(
    "body and head after local work, the mean features of each class, and how many samples it has",
    no_dp="prototypes and variances of features are sent, too, without a bound on what they reveal",
    no_sum="the server weights single heads by single distances",
)
OWN_MODEL = Disclosure(
    "its own model, which the server compares with those of others and mixes into theirs",
    no_dp="the server mixes models by single distances, so what one client gets reveals another's data",
    no_sum="single models are compared",
)
COIN_STEPS = Disclosure(
    "gradients or control variates of the shared block, at random times",
    no_dp="private sampling, anchors and control variates need an analysis of their own",
    no_sum="gradients could be summed, but each client sends its own constants and losses",
)
OWN_MODELS = Disclosure(
    "its own model, at random times",
    no_dp="the reply is the client's own model, with control variates that need an analysis of their own",
    no_sum="models could be summed, but each client sends its own constants and losses",
)
