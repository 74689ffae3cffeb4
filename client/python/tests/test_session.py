"""Session: a training loop by hand, against NumPy and against fit."""

import contextlib
import os
import random
import signal
import socket
import threading
import time

import numpy as np
import pytest
import small

import espalier
from espalier import errors, optimizers
from espalier.training import fit

SGD = {"optimizer": optimizers.SGD(0.5), "batch_size": 32}


def rows(data, step, batch=32):
    return {name: column[step * batch : (step + 1) * batch] for name, column in data.items()}


def loop(session, batch=None):
    session.zero_gradients()
    values = session.forward(batch)
    session.backward()
    session.update()
    return values


def test_a_loop_by_hand_is_that_of_numpy(daemon):
    data = small.examples()
    losses, accuracies, parameters = small.train(data, 8, 32, 0.5)
    with espalier.Session(small.graph(), **SGD) as session:
        values = [loop(session, rows(data, step)) for step in range(8)]
        trained = session.parameters()
    np.testing.assert_allclose([v["loss"] for v in values], losses, atol=2e-6)
    np.testing.assert_allclose([v["accuracy"] for v in values], accuracies, atol=1e-6)
    assert set(trained) == set(parameters)
    for name, expected in parameters.items():
        np.testing.assert_allclose(trained[name], expected, atol=2e-6)


@pytest.mark.parametrize("strategy", ["single_device", "data_parallel"])
def test_loop_step_and_fit_give_the_same_bits(daemon, strategy):
    data = small.examples()
    options = {"seed": 5, "search": {"strategy": strategy}, **SGD}
    result = fit(small.graph(), data, steps=8, verbose=0, **options)
    with espalier.Session(small.graph(), data, **options) as session:
        looped = [loop(session)["loss"] for _ in range(8)]
        assert session.updates == 8
    with espalier.Session(small.graph(), data, **options) as session:
        session.step(steps=8)
        assert "linear" in str(session.plan)
        stepped = [values["loss"] for values in session.steps]
        weights = session.parameters()
    assert looped == stepped == result.history["loss"]
    for name, expected in result.weights().items():
        assert np.array_equal(weights[name], expected), name


def test_gradients_are_those_of_numpy_and_add_up(daemon):
    data = rows(small.examples(), 0)
    _, _, expected = small.loss_and_gradients(small.initial(), data["x"], data["labels"])
    with espalier.Session(small.graph(), **SGD) as session:
        session.zero_gradients()
        for passes in (1, 2):
            session.forward(data)
            session.backward()
            for name, gradient in session.gradients().items():
                np.testing.assert_allclose(gradient, passes * expected[name], atol=1e-6)
        session.set_gradients({"w1": np.ones((small.HIDDEN, small.FEATURES))})
        before = session.get("w1")
        session.update()
        np.testing.assert_allclose(session.get("w1"), before - 0.5, atol=1e-6)


def test_evaluate_and_predict_take_any_number_of_examples(daemon):
    graph, data, p = small.graph(), small.examples(70), small.initial()
    logits = next(node for node in graph.proto.nodes if node.name == "linear_1").outputs[0]
    graph.proto.outputs.add(name="logits", value=logits)
    loss, accuracy, _ = small.loss_and_gradients(p, data["x"], data["labels"])
    expected = np.tanh(data["x"] @ p["w1"].T + p["b1"]) @ p["w2"].T + p["b2"]
    with espalier.Session(graph, **SGD) as session:
        assert session.evaluate(data) == pytest.approx({"loss": loss, "accuracy": accuracy}, abs=1e-6)
        by_batches = [(data["x"][i : i + 9], data["labels"][i : i + 9]) for i in range(0, 70, 9)]
        assert session.evaluate(by_batches) == pytest.approx({"loss": loss, "accuracy": accuracy}, abs=1e-6)
        assert list(session.predict({"x": data["x"]})) == ["logits"]
        np.testing.assert_allclose(session.predict({"x": data["x"]})["logits"], expected, atol=1e-5)
        np.testing.assert_allclose(session.predict(data["x"][:5], ["logits"])["logits"], expected[:5], atol=1e-5)
        with pytest.raises(errors.EspalierError, match="nothing"):
            session.predict({"x": data["x"]}, ["nothing"])


def test_the_held_out_examples_and_rows_of_the_data(daemon):
    data = small.examples(100)
    held = {name: column[80:] for name, column in data.items()}
    with espalier.Session(small.graph(), data, validation_split=0.2, **SGD) as session:
        assert session.examples == 80
        assert session.evaluate() == pytest.approx(session.evaluate(held), abs=1e-6)
        chosen = list(range(3, 35))
        inline = session.forward({name: column[3:35] for name, column in data.items()})
        assert session.forward(chosen) == pytest.approx(inline, abs=1e-7)


def test_state_learning_rate_and_saved_model(daemon):
    data = rows(small.examples(), 0)
    with espalier.Session(small.graph(), optimizer=optimizers.SGD(0.5, momentum=0.9), batch_size=32) as session:
        loop(session, data)
        state = session.optimizer_state()
        assert any(array.any() for array in state.values())
        session.set_optimizer_state({name: np.zeros_like(array) for name, array in state.items()})
        session.set_learning_rate(0.0)
        before = session.parameters()
        session.zero_gradients()
        session.forward(data)
        session.backward()
        assert session.update()["learning_rate"] == 0.0
        for name, array in session.parameters().items():
            assert np.array_equal(array, before[name])
        first, second = session.save("session-test"), session.save("session-test")
        assert first != second
    for name, array in daemon.weights(first).items():
        assert np.array_equal(array, before[name])


def test_means_over_batches(daemon):
    data = small.examples()
    with espalier.Session(small.graph(), **SGD) as session:
        losses = [session.forward(rows(data, i))["loss"] for i in range(4)]
        assert session.means["loss"] == pytest.approx(np.mean(losses), abs=1e-6)
        assert session.reset_metrics()["loss"] == pytest.approx(np.mean(losses), abs=1e-6)
        assert session.forward(rows(data, 0))["loss"] == session.means["loss"]


def test_what_is_wrong_is_refused_and_the_session_goes_on(daemon):
    data = rows(small.examples(), 0)
    with espalier.Session(small.graph(), **SGD) as session:
        session.backward()
        with pytest.raises(errors.FailedPrecondition, match="backward"):
            session.forward(data)
        with pytest.raises(errors.FailedPrecondition, match="update"):
            dict(session.update())
        session.update()
        with pytest.raises(errors.FailedPrecondition, match="update"):
            session.parameters()
        with pytest.raises(errors.InvalidArgument, match="shape"):
            session.set_parameters({"w1": np.zeros(3)})
        with pytest.raises(errors.NotFound, match="it has"):
            session.set_parameters({"nothing": np.zeros(3)})
        with pytest.raises(errors.InvalidArgument, match="labels"):
            session.forward({"x": data["x"]})
        with pytest.raises(errors.InvalidArgument, match="no input reads"):
            session.predict({"y": data["x"]})
        for steps in (0, -1, 2.0, True):
            with pytest.raises(errors.InvalidArgument, match=f"^steps is {steps}; accepted: an integer above 0$"):
                session.step(steps=steps)
        with pytest.raises(TypeError, match="'step'; did you mean 'steps'"):
            session.step(step=3)
        with pytest.raises(TypeError, match="'batchsize'; did you mean 'batch_size'"):
            espalier.Session(small.graph(), data, optimizer="sgd", batchsize=16)
        for size in (0, 16.0):
            with pytest.raises(errors.InvalidArgument, match=f"^batch_size is {size}; accepted: an integer above 0$"):
                espalier.Session(small.graph(), data, optimizer="sgd", batch_size=size)
        with pytest.raises(errors.FailedPrecondition, match="validation_split"):
            session.evaluate()
        wrong = {"x": data["x"], "labels": np.where(np.arange(32) == 17, 3, data["labels"])}
        with pytest.raises(errors.InvalidArgument, match=r"'labels': example 17 is 3; accepted are 0 to 2"):
            session.evaluate(wrong)
        with pytest.raises(errors.InvalidArgument, match="kind"):
            session.get("w1", kind="weight")
        assert np.isfinite(loop(session, data)["loss"])
    with pytest.raises(errors.FailedPrecondition, match="closed"):
        session.forward(data)


def with_relu(graph):
    """The graph with another activation."""
    other = graph.copy()
    other.set_attributes("linear", activation="relu")
    return other


def test_recompile_goes_on_with_another_graph(daemon):
    data = small.examples()
    options = {"optimizer": optimizers.Adam(0.05), "batch_size": 32, "search": {"strategy": "data_parallel"}}
    with espalier.Session(small.graph(), data, **options) as session:
        session.step(steps=3)
        before = session.parameters(), session.optimizer_state()
        assert session.recompile(with_relu(session.graph)) == []
        assert session.updates == 3
        for old, new in zip(before, (session.parameters(), session.optimizer_state()), strict=True):
            assert old.keys() == new.keys()
            for name, array in old.items():
                assert np.array_equal(array, new[name]), name
        switched = session.step(steps=2)["loss"]
    # Batches, moments and the bias correction of Adam go on: as one session that is recompiled to the same graph.
    with espalier.Session(small.graph(), data, **options) as session:
        expected = session.step(steps=5)
        assert switched != expected["loss"]
    with espalier.Session(small.graph(), data, **options) as session:
        session.step(steps=3)
        session.recompile(session.graph.copy())
        assert session.step(steps=2) == expected


def test_a_graph_that_cannot_be_leaves_the_session_as_it_was(daemon):
    data = small.examples()
    with espalier.Session(small.graph(), data, **SGD) as session:
        expected = session.step(steps=4)
    with espalier.Session(small.graph(), data, **SGD) as session:
        session.step(steps=2)
        wrong = session.graph.copy()
        wrong.set_attributes("linear", activation="nothing")
        with pytest.raises(errors.InvalidArgument, match="nothing"):
            session.recompile(wrong)
        assert session.step(steps=2) == expected


def test_a_trigger_recompiles_during_training(daemon):
    asked = []

    def trigger(session):
        asked.append(session.updates)
        return session.updates == 2

    with espalier.Session(small.graph(), small.examples(), **SGD) as session:
        session.recompile_when(trigger, lambda session: with_relu(session.graph))
        first = session.id
        for _ in range(4):
            loop(session)
        assert session.id != first
        activations = [node.attributes["activation"].s for node in session.graph.proto.nodes if node.name == "linear"]
        assert activations == ["relu"]
    assert asked == [1, 2, 3, 4]


class Proxy:
    """Passes a port on to another until it cuts all connections."""

    def __init__(self, address):
        self._target = tuple(address.rsplit(":", 1))
        self._open = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    @staticmethod
    def _copy(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)

    def cut(self):
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self):
        self._server.close()
        self.cut()


def test_a_session_survives_broken_connections(daemon):
    data = small.examples()
    with espalier.Session(small.graph(), **SGD) as session:
        expected = [loop(session, rows(data, step))["loss"] for step in range(8)]
    proxy = Proxy(daemon.address)
    client = espalier.Client(proxy.address)
    got = []
    with espalier.Session(small.graph(), **SGD, client=client) as session:
        for step in range(8):
            if step in (2, 5):
                proxy.cut()
            session.zero_gradients()
            got.append(session.forward(rows(data, step))["loss"])
            session.backward()
            if step == 3:
                proxy.cut()  # while an answer is under way
            session.update()
        assert session.updates == 8
    client.close()
    proxy.close()
    assert got == expected


def test_the_next_session_waits_for_the_workers_of_the_last(daemon, monkeypatch, caplog):
    monkeypatch.setattr("espalier.session._SILENT_SECONDS", 0.2)
    first = espalier.Session(small.graph(), **SGD)
    with pytest.raises(errors.ResourceExhausted):
        espalier.Session(small.graph(), **SGD, wait_seconds=0)

    def close_once_said():
        end = time.monotonic() + 15
        while "Waiting for" not in caplog.text and time.monotonic() < end:
            time.sleep(0.01)
        first.close()

    closer = threading.Thread(target=close_once_said)
    closer.start()
    with espalier.Session(small.graph(), **SGD, wait_seconds=20) as second:
        assert np.isfinite(second.step(rows(small.examples(), 0))["loss"])
    closer.join()
    assert "the session takes 1 worker; 0 of 2 are idle. Waiting for up to 19.8 s" in caplog.text


def steps_until_interrupted(session, choose):
    """Steps, by hand and not, until a Ctrl-C that comes at a random moment."""
    timer = threading.Timer(choose.uniform(0, 0.05), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        while True:
            if choose.random() < 0.5:
                session.step(steps=choose.choice((1, 3, 50)))
            else:
                loop(session)
    except KeyboardInterrupt:
        timer.join()


def test_a_session_goes_on_after_interrupts(daemon):
    """Ctrl-C ends the wait; what was sent is carried out once, in order, whenever it came."""
    data, choose = small.examples(), random.Random(4)
    with espalier.Session(small.graph(), data, **SGD) as session:
        for _ in range(40):
            steps_until_interrupted(session, choose)
        loop(session)
        steps, weights = session.updates, session.parameters()
    # Between two passes a Ctrl-C may have left some of the four commands of a loop out.
    assert steps > 40
    assert all(np.isfinite(value).all() for value in weights.values())


def test_what_is_asked_is_carried_out_once_whenever_an_interrupt_comes(daemon):
    data, choose = small.examples(), random.Random(5)

    def step_to(session, updates):
        timer = threading.Timer(choose.uniform(0, 0.02), os.kill, (os.getpid(), signal.SIGINT))
        while True:
            try:
                if timer.ident is None:
                    timer.start()
                while session.updates < updates:
                    session.step()
                timer.join()
                return
            except KeyboardInterrupt:
                continue

    with espalier.Session(small.graph(), data, **SGD) as session:
        for updates in range(1, 61):
            step_to(session, updates)
        assert session.updates == 60
        weights = session.parameters()
    with espalier.Session(small.graph(), data, **SGD) as session:
        session.step(steps=60)
        expected = session.parameters()
    for name, value in expected.items():
        assert np.array_equal(weights[name], value), name
