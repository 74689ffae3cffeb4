"""fit: curves, weights, evaluation, resuming, notes, callbacks."""

import io
import warnings

import numpy as np
import pytest
import small

import espalier
from espalier import errors, optimizers
from espalier.graph import Graph
from espalier.training import Callback, fit, make_spec
from espalier.v1 import training_pb2


def sgd(rate):
    return optimizers.SGD(rate)


def quiet_fit(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.EspalierWarning)
        return fit(*args, verbose=0, **kwargs)


def test_the_loss_curve_is_that_of_numpy(daemon):
    data = small.examples()
    result = quiet_fit(small.graph(), data, optimizer=sgd(0.5), batch_size=32, steps=20, shuffle=False)
    losses, accuracies, parameters = small.train(data, 20, 32, 0.5)
    np.testing.assert_allclose(result.history["loss"], losses, atol=2e-6)
    np.testing.assert_allclose(result.history["accuracy"], accuracies, atol=1e-6)
    weights = result.weights()
    assert set(weights) == set(parameters)
    for name, expected in parameters.items():
        np.testing.assert_allclose(weights[name], expected, atol=2e-6)


def test_the_evaluation_is_that_of_the_last_examples(daemon):
    data = small.examples(250)
    result = quiet_fit(
        small.graph(), data, optimizer=sgd(0.3), batch_size=32, epochs=2, validation_split=0.2, shuffle=False
    )
    weights = {name: value.astype(np.float64) for name, value in result.weights().items()}
    loss, accuracy, _ = small.loss_and_gradients(weights, data["x"][200:], data["labels"][200:])
    assert result.evaluation == pytest.approx({"loss": loss, "accuracy": accuracy}, abs=1e-5)
    assert len(result.history["loss"]) == 2 * (200 // 32)


@pytest.mark.parametrize("execution", ["job", "session"])
def test_examples_of_their_own_are_evaluated_after_each_epoch(daemon, execution):
    class Watch(Callback):
        def __init__(self):
            self.seen = []

        def on_epoch(self, run, epoch, values):
            self.seen.append(values["val_loss"])

    watch, others = Watch(), small.examples(37, seed=8)
    arguments = {"optimizer": sgd(0.3), "batch_size": 32, "epochs": 3, "execution": execution}
    result = quiet_fit(small.graph(), small.examples(), validation_data=others, callbacks=[watch], **arguments)
    weights = {name: value.astype(np.float64) for name, value in result.weights().items()}
    loss, accuracy, _ = small.loss_and_gradients(weights, others["x"], others["labels"])
    assert result.evaluation == pytest.approx({"loss": loss, "accuracy": accuracy}, abs=1e-5)
    assert len(watch.seen) == 3
    assert watch.seen[-1] == pytest.approx(loss, abs=1e-5)
    assert watch.seen[0] > watch.seen[-1]
    with pytest.raises(errors.InvalidArgument, match="give one of them"):
        quiet_fit(small.graph(), small.examples(), validation_data=others, validation_split=0.1, **arguments)


def test_shuffling_changes_the_curve_and_a_seed_repeats_it(daemon):
    def losses(seed):
        arguments = {"optimizer": "sgd", "batch_size": 32, "epochs": 2, "search": {"strategy": "single_device"}}
        return quiet_fit(small.graph(), small.examples(), seed=seed, **arguments).history["loss"]

    assert losses(3) == losses(3)
    assert losses(3) != losses(4)


@pytest.mark.parametrize("data", ["tuple", "npz", "artifact", "batches", "examples"])
def test_all_kinds_of_data_give_the_same_curve(daemon, data, tmp_path):
    examples = small.examples(64)
    x, labels = examples["x"], examples["labels"]
    if data == "tuple":
        given = (x.astype(np.float64), labels)
    elif data == "npz":
        given = tmp_path / "my data.npz"
        np.savez(given, **examples)
    elif data == "artifact":
        given = daemon.upload(examples)
    elif data == "batches":
        given = ({"x": x[i : i + 10], "labels": labels[i : i + 10]} for i in range(0, 64, 10))
    else:
        given = list(zip(x, labels, strict=True))
    result = quiet_fit(small.graph(), given, optimizer=sgd(0.5), batch_size=16, epochs=2, shuffle=False)
    assert result.history["loss"] == pytest.approx(small.train(examples, 8, 16, 0.5)[0], abs=2e-6)


@pytest.mark.parametrize(("label", "accepted"), [(3, False), (-1, False), (-100, True)])
def test_labels_of_no_class_are_refused_before_a_step(daemon, label, accepted):
    data = small.examples(64)
    data["labels"][41] = label
    arguments = {"optimizer": "sgd", "batch_size": 32, "steps": 2}
    if accepted:
        quiet_fit(small.graph(), data, **arguments)
        return
    with pytest.raises(
        errors.InvalidArgument, match=f"'labels': example 41 is {label}; accepted are 0 to 2"
    ) as refused:
        quiet_fit(small.graph(), data, **arguments)
    assert "sparse_categorical_crossentropy" in str(refused.value)


@pytest.mark.parametrize(("id_", "accepted"), [(10, False), (-1, False), (9, True)])
def test_ids_beyond_the_table_are_refused_before_a_step(daemon, id_, accepted):
    graph = Graph("lookup")
    ids, y = graph.input("ids", (None, 2, 2), "int32"), graph.input("y", (None, 4, 3))
    table = graph.parameter("table", data=np.ones((10, 3), np.float32))
    rows = graph.op("embedding", [graph.op("flatten", [ids], {"axis": 1}), table])
    graph.output("loss", graph.op("mean_squared_error", [rows, y]))
    data = {"ids": np.ones((8, 2, 2), np.int32), "y": np.ones((8, 4, 3), np.float32)}
    data["ids"][5, 1, 0] = id_
    arguments = {"optimizer": "sgd", "batch_size": 4, "steps": 2}
    if accepted:
        quiet_fit(graph, data, **arguments)
        return
    with pytest.raises(errors.InvalidArgument, match=f"'ids': example 5, element 2 is {id_}; accepted are 0 to 9"):
        quiet_fit(graph, data, **arguments)


def test_a_name_becomes_that_of_the_model(daemon):
    result = quiet_fit(small.graph(), small.examples(), optimizer="adam", batch_size=32, steps=2, name="my-model")
    assert result.model.split("@")[0] == "my-model"
    np.testing.assert_array_equal(daemon.weights(result.model)["w1"], result.weights()["w1"])


def test_a_large_graph_travels_as_an_artifact(daemon, monkeypatch):
    monkeypatch.setattr("espalier.values.MOST_BYTES", 500)
    data = small.examples()
    result = quiet_fit(small.graph(), data, optimizer=sgd(0.5), batch_size=32, steps=5, shuffle=False)
    assert result.job.record.spec.init_artifact
    assert result.history["loss"] == pytest.approx(small.train(data, 5, 32, 0.5)[0], abs=2e-6)


def test_searching_options_reach_the_plan(daemon):
    result = quiet_fit(
        small.graph(), small.examples(), optimizer="sgd", batch_size=32, steps=2, search={"strategy": "data_parallel"}
    )
    plan = result.job.plan
    assert {op.degrees["sample"] for op in plan.proto.operators if op.op == "linear"} == {2}
    assert "linear" in str(plan)
    page = plan._repr_html_()
    assert "sample=2" in page
    assert "measured" in page


def test_a_plan_is_used_again(daemon, tmp_path):
    first = quiet_fit(
        small.graph(), small.examples(), optimizer="sgd", batch_size=32, steps=2, search={"strategy": "data_parallel"}
    )
    first.job.plan.save(tmp_path / "plan.json")
    for imported in (first.job.plan, tmp_path / "plan.json"):
        again = quiet_fit(
            small.graph(), small.examples(), optimizer="sgd", batch_size=32, steps=2, search={"imported": imported}
        )
        assert again.history == first.history
        assert again.job.plan.proto.operators == first.job.plan.proto.operators


def test_an_error_names_the_users_line(daemon):
    g = espalier.Graph("wrong")
    x = g.input("x", (None, 6))
    w = g.parameter("w", data=np.zeros((2, 5), np.float32))
    g.output("loss", g.op("identity_loss", [g.op("linear", [x, w], name="narrow")]))  # this line
    with open(__file__) as file:
        line = next(i for i, text in enumerate(file, 1) if "# this line" in text)
    with pytest.raises(errors.InvalidArgument, match=rf"node 'narrow' \(linear, .*test_training\.py:{line}\): "):
        fit(g, {"x": small.examples()["x"]}, optimizer="sgd", batch_size=8)
    assert not [job for job in daemon.jobs() if job.spec.name == "wrong"]


def test_a_failing_kernel_names_the_users_line(daemon):
    g = espalier.Graph("lookup")
    ids = g.input("ids", (None,), "int64")
    ids = g.op("add", [ids, ids])  # so that only the kernel sees which ids there are
    w = g.parameter("w", data=np.ones((4, 3), np.float32))
    g.output("loss", g.op("identity_loss", [g.op("embedding", [ids, w], name="table")]))  # the line of the table
    with open(__file__) as file:
        line = next(i for i, text in enumerate(file, 1) if "# the line of the table" in text)
    with pytest.raises(errors.JobFailed, match=rf"of 'table', .*test_training\.py:{line}\)"):
        quiet_fit(g, {"ids": np.arange(8)}, optimizer="sgd", batch_size=8, epochs=1)


def test_outputs_that_are_results_need_no_note(daemon):
    g = small.graph()
    g.output("hidden", g.op("relu", [g.input("more", (None, 2))]))
    data = small.examples() | {"more": np.zeros((256, 2), np.float32)}
    with warnings.catch_warnings():
        warnings.simplefilter("error", errors.EspalierWarning)
        result = fit(g, data, optimizer="sgd", batch_size=32, steps=2, verbose=0)
    assert result.job.notes == []


def test_groups_of_parameters_have_options_of_their_own(daemon):
    groups = [optimizers.Group(["w1"], learning_rate_scale=0.0, weight_decay=0.5), optimizers.Group(["b*"], 0.5)]
    sgd = optimizers.make("sgd", 0.5, groups=groups)
    result = quiet_fit(small.graph(), small.examples(), optimizer=sgd, batch_size=256, steps=1, shuffle=False)
    before = {name: value.astype(np.float64) for name, value in small.initial().items()}
    _, _, gradients = small.loss_and_gradients(before, **small.examples())
    for name, value in result.weights().items():
        rate = {"w1": 0.0, "w2": 0.5}.get(name, 0.25)
        np.testing.assert_allclose(value, before[name] - rate * gradients[name], atol=2e-6, err_msg=name)
    unknown = optimizers.make("sgd", 0.5, groups=[optimizers.Group(["w3"])])
    with pytest.raises(errors.InvalidArgument, match=r"groups\[0\].parameters has 'w3', which matches no trained"):
        quiet_fit(small.graph(), small.examples(), optimizer=unknown, batch_size=32, steps=1)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (optimizers.table([0.5, 0.0, 0.25]), [0.5, 0.0, 0.25, 0.25, 0.25]),
        (optimizers.linear(warmup=2, steps=4, warmup_from=0.0), [0.0, 0.25, 0.5, 0.25, 0.0]),
    ],
)
def test_schedules_by_step(daemon, schedule, rates):
    sgd = optimizers.SGD(0.5, schedule=schedule)
    result = quiet_fit(small.graph(), small.examples(), optimizer=sgd, batch_size=32, steps=5)
    assert result.history["learning_rate"] == pytest.approx(rates)


def test_arguments_that_cannot_be_are_refused_before_anything_is_sent(daemon):
    jobs, artifacts = len(daemon.jobs()), len(daemon.artifacts())
    good = {"optimizer": "sgd", "batch_size": 16}
    data = small.examples(40)
    for wrong, message in [
        ({"epochs": 1, "steps": 2}, "epochs or steps"),
        *(({name: 0}, f"^{name} is 0; accepted: an integer above 0$") for name in ("batch_size", "epochs", "steps")),
        ({"batch_size": -16}, "batch_size is -16"),
        ({"batch_size": True}, "batch_size is True"),
        ({"batch_size": 16.0}, "batch_size is 16.0"),
        ({"batch_size": "16"}, "batch_size is '16'"),
        ({"batch_size": None}, "batch_size is None"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"steps": float("nan")}, "steps is nan"),
        ({"checkpoint_every": -1}, "checkpoint_every is -1; accepted: an integer of 0 or more"),
        ({"record": "on"}, "record is 'on'; accepted: 'adaptive', 'off', 'every:N'"),
        ({"record": "adaptve"}, "did you mean 'adaptive'"),
        *(({"record": f"every:{n}"}, f"record is 'every:{n}'; accepted") for n in ("", "0", "-1", "1.5", 1 << 63)),
        ({"record": True}, "record is True; accepted"),
        ({"record": {"every": 3}}, "record has no field 'every'; it has mode, every_steps.*did you mean 'every_steps'"),
        ({"record": {"overhead": 1.0}}, "record: overhead is 1.0"),
        ({"record": {"mode": "every:5", "overhead": 0.1}}, "overhead goes with 'adaptive'"),
        ({"record": {"mode": "off", "keep": 2}}, "'off' keeps nothing that keep could limit"),
        ({"record": {"keep": 0}}, "record: keep is 0"),
        ({"record": "every:5", "checkpoint_every": 4}, "give one of them"),
        ({"record": "off", "execution": "session"}, "record: only a job is recorded"),
        ({"steps_per_epoch": 2.0}, "steps_per_epoch is 2.0; accepted: an integer of 0 or more"),
        ({"steps": 1 << 63}, "steps is 9223372036854775808; accepted: an integer up to 9223372036854775807"),
        ({"seed": -1}, "seed is -1; accepted: an integer of 0 or more"),
        ({"seed": 0.5}, "seed is 0.5; accepted: an integer of 0 or more"),
        ({"seed": 1 << 64}, "seed is 18446744073709551616; accepted: an integer up to"),
        ({"initial_epoch": -1}, "initial_epoch is -1; accepted: an integer of 0 or more"),
        ({"validation_split": 1.0}, "validation_split"),
        ({"precision": "f8"}, "precision 'f8'"),
        ({"precision": "bfloat-16"}, "did you mean 'bfloat16'"),
        ({"optimizer": "sgdm"}, "sgdm.*accepted are sgd, adam"),
        ({"optimizer": "adamm"}, "'adamm'.*accepted are .*; did you mean 'adam'"),
        ({"search": {"budgte": 3}}, "'budgte'.*budget.*did you mean 'budget'"),
        ({"search": {"strategy": "data-paralel"}}, "'data-paralel'; accepted are .*did you mean 'data_parallel'"),
        (
            {"search": {"strategy": "fastest"}},
            "'fastest'; accepted are search, data_parallel, single_device, imported$",
        ),
        ({"verbose": 3}, "verbose"),
        ({"columns": {"z": "x"}}, "input z"),
        ({"columns": {"lables": "x"}}, "input lables; the graph's are x, labels; did you mean 'labels'"),
        ({"columns": {"labels": "X"}}, "did you mean 'x'"),
    ]:
        with pytest.raises(errors.InvalidArgument, match=message):
            fit(small.graph(), data, **{**good, **wrong})
    for wrong_data, message in [
        ({"x": data["x"]}, r"input labels.*no column labels, only x"),
        ({"x": data["x"][:, :5], "labels": data["labels"]}, r"input x \[6\].*\[5\]"),
        ({"x": data["x"][:7], "labels": data["labels"]}, "x 7, labels 40"),
        ({"x": data["x"], "labels": data["labels"] + 0.5}, "integers.*0.5|1.5|2.5"),
        ({"x": data["x"], "labels": np.array(["a"] * 40)}, "labels has elements of type <U1"),
        ((data["x"],), "1 arrays, the graph 2 inputs"),
        ("no-such.npz", "no file no-such.npz"),
        (7, "data is a int"),
        (iter([]), "no examples"),
    ]:
        with pytest.raises(errors.InvalidArgument, match=message):
            fit(small.graph(), wrong_data, **good)
    g = espalier.Graph("no-loss")
    g.output("y", g.op("relu", [g.input("x", (None, 2))]))
    with pytest.raises(errors.InvalidArgument, match="no output 'loss'"):
        fit(g, {"x": np.zeros((4, 2))}, **good)
    assert (jobs, artifacts) == (len(daemon.jobs()), len(daemon.artifacts()))


def test_misspelled_arguments_of_optimizers_are_refused():
    with pytest.raises(errors.InvalidArgument, match=r"no argument 'wieght_decay'.*did you mean 'weight_decay'"):
        optimizers.make("adamw", wieght_decay=0.1)
    with pytest.raises(errors.InvalidArgument, match=r"schedule 'cosin': .*did you mean 'cosine'"):
        optimizers.make("adamw", schedule="cosin")


def test_what_a_loader_raises_is_passed_on(daemon):
    def loader():
        yield small.examples(16)
        raise RuntimeError("disk on fire")

    jobs = len(daemon.jobs())
    with pytest.raises(RuntimeError, match="disk on fire"):
        fit(small.graph(), loader(), optimizer="sgd", batch_size=8)
    assert len(daemon.jobs()) == jobs


def test_an_endless_iterable_is_read_as_far_as_needed(daemon):
    taken = []

    def forever():
        while True:
            taken.append(1)
            yield small.examples(16)

    quiet_fit(small.graph(), forever(), optimizer="sgd", batch_size=8, steps=6)
    assert len(taken) == 3


def test_a_failed_job_says_why_and_how_to_go_on(daemon):
    data = small.examples()
    data["labels"][200] = 7  # there are 3 classes
    with pytest.raises(espalier.EspalierError, match=r"labels|7"):
        quiet_fit(small.graph(), data, optimizer="sgd", batch_size=32, epochs=1)


def test_a_cancelled_job_is_resumed(daemon):
    spec = make_spec(small.graph(), optimizer=sgd(0.5), batch_size=32, steps=200_000, checkpoint_every=10)
    spec.dataset.uri, spec.dataset.format = f"artifact:{daemon.upload(small.examples())}", 1
    job = daemon.submit(spec)
    for event in job.events():
        if event.HasField("step") and event.step.step >= 30:
            break
    assert job.state == "running"
    with pytest.raises(errors.FailedPrecondition, match="once it has succeeded"):
        job.weights()
    with pytest.raises(errors.FailedPrecondition):
        job.resume()
    with pytest.raises(TimeoutError, match="not over yet"):
        job.wait(timeout=0.3)
    before = job.record.steps_done
    assert job.checkpoint() >= before
    assert job.cancel() == "cancelled"
    with pytest.raises(errors.FailedPrecondition, match="trains nothing"):
        job.checkpoint()
    with pytest.raises(espalier.JobFailed, match=r"resume\(\)") as failed:
        job.wait()
    assert failed.value.job_id == job.id
    record = job.record
    assert record.checkpoint_step >= 10
    job.resume()
    for event in job.events(from_step=record.checkpoint_step):
        if event.HasField("step"):
            assert event.step.step >= record.checkpoint_step
            break
    job.cancel()
    history = job.history
    assert len(history["loss"]) > 30
    assert not np.isnan(history["loss"]).any()


class Recorder(Callback):
    def __init__(self):
        self.calls = []

    def configure(self, spec):
        spec.optimizer.learning_rate.peak = 0.25

    def on_begin(self, run):
        self.calls.append(("begin", run.job.id))

    def on_step(self, run, step, values):
        self.calls.append(("step", step, values["loss"]))

    def on_epoch(self, run, epoch, values):
        self.calls.append(("epoch", epoch, values["loss"]))

    def on_end(self, run, result):
        self.calls.append(("end", result.job.id))


def test_callbacks_see_steps_and_epochs(daemon):
    recorder = Recorder()
    data = small.examples(128)
    result = quiet_fit(
        small.graph(), data, optimizer="sgd", batch_size=32, epochs=2, shuffle=False, callbacks=[recorder]
    )
    losses = result.history["loss"]
    assert losses == pytest.approx(small.train(data, 8, 32, 0.25)[0], abs=2e-6)
    steps = [("step", i, loss) for i, loss in enumerate(losses)]
    epochs = [("epoch", i, pytest.approx(np.mean(losses[4 * i : 4 * i + 4]))) for i in range(2)]
    job = result.job.id
    assert recorder.calls == [("begin", job), *steps[:4], epochs[0], *steps[4:], epochs[1], ("end", job)]


def test_a_callback_stops_the_training(daemon):
    class Stop(Callback):
        def on_step(self, run, step, values):
            if step == 20:
                run.stop("enough")

    result = quiet_fit(
        small.graph(), small.examples(), optimizer="sgd", batch_size=32, steps=500_000, callbacks=[Stop()]
    )
    assert result.job.state == "cancelled"
    assert 20 < len(result.history["loss"]) < 500_000


def test_notes_are_printed_or_warned(daemon, capsys):
    # With steps in the order of the file, the examples that no batch holds are named.
    arguments = {"optimizer": "sgd", "batch_size": 30, "epochs": 1, "shuffle": False}
    with pytest.warns(errors.EspalierWarning) as caught:
        fit(small.graph(), small.examples(100), verbose=0, **arguments)
    note = str(caught[0].message)
    assert capsys.readouterr().out == ""
    fit(small.graph(), small.examples(100), verbose=1, **arguments)
    assert f"note: {note}" in capsys.readouterr().out


def test_a_job_says_nothing_about_plans_and_files_but_in_the_log(daemon, capsys, caplog):
    caplog.set_level("INFO", logger="espalier")
    job = fit(small.graph(), small.examples(), optimizer="sgd", batch_size=32, epochs=30).job.id
    *states, last = [line for line in capsys.readouterr().out.splitlines() if "step " not in line]
    # fit first submits the job and then watches it. The answer to Submit does not wait for the thread that takes jobs
    # from the queue, so the watch may find the job queued; and it may come when the job has been planned. What comes
    # after the first state that it finds, it misses none of.
    order = [f"job {job} is {state}" for state in ("queued", "planning", "running")]
    assert states in (order, order[1:], order[2:])
    assert last.startswith(f"job {job} succeeded after 240 of 240 steps")
    logged = [record.getMessage() for record in caplog.records]
    assert any(line.startswith(f"job {job}: the model has no ONNX file") for line in logged)


@pytest.mark.parametrize("verbose", [0, 1])
def test_messages_are_shown_by_their_level(verbose, caplog):
    from espalier.progress import Printer

    caplog.set_level("INFO", logger="espalier")
    out = io.StringIO()
    printer = Printer(verbose, out)
    # A text decides nothing.
    info, detail, lost = "finished early", "waits", "fused: worker w2 lost, going back to step 40"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for level, text in (("INFO", info), ("DETAIL", detail), ("WARNING", lost)):
            printer.job_message("job-1", training_pb2.JobMessage(text=text, level=level))
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    if verbose == 0:
        assert out.getvalue() == ""
        assert logged == [("INFO", f"job job-1: {info}"), ("INFO", f"job job-1: {detail}")]
        assert [(warning.category, str(warning.message)) for warning in caught] == [(errors.EspalierWarning, lost)]
    else:
        assert out.getvalue() == f"{info}\nwarning: {lost}\n"
        assert logged == [("INFO", f"job job-1: {detail}")]
        assert caught == []


def test_verbose_2_prints_a_line_for_each_epoch(daemon, capsys):
    result = fit(small.graph(), small.examples(128), optimizer="sgd", batch_size=32, epochs=3, verbose=2)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]
    assert f"loss {np.mean(result.history['loss'][:4]):.4f}" in lines[0]


def test_a_dry_run_reports_and_queues_nothing(daemon):
    spec = make_spec(small.graph(), optimizer="sgd", batch_size=32, epochs=1)
    spec.dataset.uri, spec.dataset.format = f"artifact:{daemon.upload(small.examples())}", 1
    jobs = len(daemon.jobs())
    reply = daemon.dry_run(spec)
    assert list(reply.problems) == []
    assert reply.total_steps == 8
    assert reply.parameters == sum(value.size for value in small.initial().values())
    assert len(daemon.jobs()) == jobs


def test_histories_become_data_frames(daemon):
    pandas = pytest.importorskip("pandas")
    result = quiet_fit(small.graph(), small.examples(), optimizer="sgd", batch_size=32, epochs=1)
    frame = result.history.dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["loss"]) == result.history["loss"]
    assert frame.index.name == "step"


def test_a_bar_is_redrawn_in_a_terminal_and_messages_stand_above_it():
    from espalier.progress import Printer

    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self):
            return True

    out = Terminal()
    printer = Printer(1, out)
    printer.step(1, 4, 0.1, {"loss": 0.5}, "")
    printer.message("hello")
    printer.step(4, 4, 0.1, {"loss": 0.25}, "")
    printer.finish("over")
    text = out.getvalue()
    assert text.count("step 1/4  25%") == 2  # before and after the message
    assert text.index("hello\n") < text.index("step 4/4 100%")
    assert "loss 0.2500" in text
    assert text.endswith("\nover\n")
