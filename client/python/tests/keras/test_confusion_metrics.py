"""AUC, Precision and the like of evaluate and validation are those of the real Keras."""

import keras
import numpy as np
import pytest
from against_keras import randomized
from keras import layers as L  # noqa: N812

import espalier.keras as ours
from espalier.errors import EspalierWarning, InvalidArgument

pytestmark = pytest.mark.filterwarnings("ignore::espalier.errors.EspalierWarning")

AUCS = [
    {},
    {"num_thresholds": 7, "summation_method": "minoring"},
    {"curve": "PR"},
    {"curve": "PR", "summation_method": "majoring"},
    {"thresholds": [0.1, 0.3, 0.35, 0.9]},
    {"label_weights": [1.0, 0.0, 2.5]},
]


def close(have, want):
    np.testing.assert_allclose(have, want, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("arguments", AUCS, ids=str)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_auc_of_batches(arguments, weighted):
    rng = np.random.default_rng(3)
    theirs, mine = keras.metrics.AUC(**arguments), ours.metrics.AUC(**arguments)
    state = 0
    for count in (50, 1, 33):
        # Some predictions lie on thresholds.
        p = np.where(rng.random((count, 3)) < 0.3, rng.integers(0, 200, (count, 3)) / 199, rng.random((count, 3)))
        p, y = p.astype(np.float32), (rng.random((count, 3)) < 0.4).astype(np.float32)
        w = rng.uniform(0, 2, count).astype(np.float32) if weighted else None
        theirs.update_state(y, p, None if w is None else np.repeat(w[:, None], 3, 1))
        state = state + mine.counts(y, p, w)
    close(mine.result(state), float(theirs.result()))


def test_auc_of_logits_and_of_nothing():
    rng = np.random.default_rng(4)
    p, y = 3 * rng.standard_normal((40, 1)).astype(np.float32), np.zeros((40, 1), np.float32)
    for curve in ("ROC", "PR"):
        for labels in (y, 1 - y, (p > rng.standard_normal((40, 1))).astype(np.float32)):
            theirs = keras.metrics.AUC(from_logits=True, curve=curve)
            theirs.update_state(labels, p)
            mine = ours.metrics.AUC(from_logits=True, curve=curve)
            close(mine.result(mine.counts(labels, p, None)), float(theirs.result()))


def both(rng, **compiled):
    keras.utils.clear_session()  # names of metrics begin anew
    model = keras.Sequential([keras.Input((6,)), L.Dense(8, activation="tanh"), L.Dense(1, activation="sigmoid")])
    randomized(model, rng)
    mine = ours.from_keras(model)
    model.compile(keras.optimizers.SGD(0.3), "binary_crossentropy", **{k: v(keras) for k, v in compiled.items()})
    mine.compile(ours.optimizers.SGD(0.3), "binary_crossentropy", **{k: v(ours) for k, v in compiled.items()})
    return model, mine


def examples(rng, count):
    x = rng.standard_normal((count, 6)).astype(np.float32)
    return x, (x[:, :1] + rng.standard_normal((count, 1)) > 0).astype(np.float32)


def shown(package):
    m = package.metrics
    rates = [m.Precision(), m.Recall(thresholds=0.4), m.TruePositives(), m.FalseNegatives(), m.TrueNegatives()]
    return ["AUC", "accuracy", m.AUC(curve="PR", name="pr"), *rates, m.FalsePositives(0.7, name="false")]


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_evaluate(daemon, weighted):
    rng = np.random.default_rng(1)
    model, mine = both(rng, metrics=shown, weighted_metrics=lambda k: [k.metrics.AUC(name="by_weights")])
    x, y = examples(rng, 45)
    weights = rng.uniform(0, 2, 45).astype(np.float32) if weighted else None
    arguments = {"batch_size": 16, "sample_weight": weights, "verbose": 0, "return_dict": True}
    have, want = mine.evaluate(x, y, **arguments), model.evaluate(x, y, **arguments)
    assert set(have) == set(want)
    for name, value in want.items():
        np.testing.assert_allclose(have[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    test = mine.test_on_batch(x[:16], y[:16], return_dict=True)
    close(test["AUC"], mine.evaluate(x[:16], y[:16], verbose=0, return_dict=True)["AUC"])
    mine.release_workers()


@pytest.mark.parametrize("split", [False, True], ids=["data", "split"])
def test_validation(daemon, split):
    rng = np.random.default_rng(2)
    model, mine = both(rng, metrics=lambda k: [k.metrics.AUC(name="auc"), "accuracy"])
    x, y = examples(rng, 60)
    held = {"validation_split": 0.2} if split else {"validation_data": (x[48:], y[48:])}
    if not split:
        x, y = x[:48], y[:48]
    for m in (model, mine):
        m.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0, **held)
    for name in ("loss", "accuracy", "val_loss", "val_accuracy", "val_auc"):
        np.testing.assert_allclose(mine.history.history[name], model.history.history[name], rtol=1e-5, err_msg=name)
    assert "auc" not in mine.history.history


def test_steps_do_not_report_it(daemon):
    rng = np.random.default_rng(5)
    _, mine = both(rng, metrics=lambda k: ["AUC"])
    x, y = examples(rng, 32)
    with pytest.warns(EspalierWarning, match="fit: AUC: computed by evaluate and validation"):
        mine.fit(x, y, batch_size=16, verbose=0)
    assert list(mine.history.history) == ["loss"]
    assert mine.job is not None
    with pytest.raises(InvalidArgument, match="AUC: a job does not validate by all predictions; give execution="):
        mine.fit(x, y, batch_size=16, verbose=0, validation_split=0.5, execution="job")


def test_refused():
    with pytest.raises(InvalidArgument, match="multi_label=True is not supported"):
        ours.metrics.AUC(multi_label=True)
    with pytest.raises(InvalidArgument, match=r"predictions go from -1 to 2, .*from_logits=True"):
        ours.metrics.AUC().counts(np.ones((2, 1)), np.array([[-1.0], [2.0]]), None)
    with pytest.raises(InvalidArgument, match="metric F1Score is no mean"):
        ours.metrics.F1Score()
