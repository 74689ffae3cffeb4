"""BERT: embeddings, encoder layers, and the tokens behind a mask. python bert.py -b 8 -e 2 --layers 24 --hidden 1024"""

import numpy as np
from common import arguments, dataset, train

from espalier.core import ActiMode, AdamOptimizer, AggrMode, DataType, FFConfig, FFModel, LossType, MetricsType

IGNORED, MASK = -100, 0


def layer(ffmodel, t, hidden, heads, dropout):
    attended = ffmodel.multihead_attention(t, t, t, hidden, heads, dropout=dropout)
    t = ffmodel.layer_norm(ffmodel.add(t, ffmodel.dropout(attended, dropout, 0)), [-1])
    inner = ffmodel.dense(t, 4 * hidden, ActiMode.AC_MODE_GELU)
    outer = ffmodel.dropout(ffmodel.dense(inner, hidden), dropout, 0)
    return ffmodel.layer_norm(ffmodel.add(t, outer), [-1])


def data(samples, sequence, vocabulary):
    """Counting sequences with an eighth of their tokens masked; labels are those tokens."""
    rng = np.random.default_rng(0)
    tokens = 1 + (rng.integers(0, vocabulary, (samples, 1)) + np.arange(sequence)) % (vocabulary - 1)
    hidden = rng.random(tokens.shape) < 1 / 8
    places = np.broadcast_to(np.arange(sequence), tokens.shape)
    return [np.where(hidden, MASK, tokens), places], np.where(hidden, tokens, IGNORED).astype(np.int32)


def top_level_task():
    args = arguments(
        vocabulary=30522, hidden=1024, heads=16, layers=24, sequence=512, dropout=0.1, samples=64, rate=1e-3
    )
    ffconfig = FFConfig()
    ffmodel = FFModel(ffconfig)
    dims = [ffconfig.batch_size, args.sequence]
    tokens, places = (ffmodel.create_tensor(dims, DataType.DT_INT64) for _ in range(2))
    t = ffmodel.add(
        ffmodel.embedding(tokens, args.vocabulary, args.hidden, AggrMode.AGGR_MODE_NONE),
        ffmodel.embedding(places, args.sequence, args.hidden, AggrMode.AGGR_MODE_NONE),
    )
    t = ffmodel.layer_norm(t, [-1])
    for _ in range(args.layers):
        t = layer(ffmodel, t, args.hidden, args.heads, args.dropout)
    ffmodel.softmax(ffmodel.dense(t, args.vocabulary))
    ffmodel.compile(
        optimizer=AdamOptimizer(ffmodel, args.rate),
        loss_type=LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
        metrics=[MetricsType.METRICS_ACCURACY],
    )
    train(ffmodel, ffconfig, [tokens, places], *dataset(ffconfig, *data(args.samples, args.sequence, args.vocabulary)))


if __name__ == "__main__":
    top_level_task()
