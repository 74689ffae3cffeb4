"""TensorBoard's own reader finds what the callback wrote."""

import numpy as np
from small import examples, graph
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from espalier import callbacks
from espalier.training import fit


def test_tensorboard_reads_the_event_files(daemon, tmp_path):
    history = callbacks.History()
    result = fit(
        graph(),
        examples(128),
        optimizer="sgd",
        batch_size=32,
        epochs=3,
        validation_split=0.25,
        client=daemon,
        verbose=0,
        callbacks=[history, callbacks.TensorBoard(tmp_path, update_freq=2)],
    )
    events = EventAccumulator(str(tmp_path / "train"))
    events.Reload()
    epochs = [(e.step, e.value) for e in events.Scalars("epoch_loss")]
    assert [step for step, _ in epochs] == [0, 1, 2]
    np.testing.assert_allclose([value for _, value in epochs], history.history["loss"], rtol=1e-6)
    steps = events.Scalars("batch_loss")
    np.testing.assert_allclose([e.value for e in steps], result.history["loss"][::2], rtol=1e-6)
    held = EventAccumulator(str(tmp_path / "validation"))
    held.Reload()
    (evaluation,) = held.Scalars("evaluation_loss_vs_iterations")
    assert (evaluation.step, evaluation.value) == (9, np.float32(result.evaluation["loss"]))
