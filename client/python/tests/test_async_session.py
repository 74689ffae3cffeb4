"""espalier.aio.Session: the blocking one's bits, several at once, cancelled coroutines."""

import asyncio
import contextlib
import inspect

import numpy as np
import pytest
import small
from pages import run

import espalier
import espalier.aio
from espalier import errors, optimizers

ONE = {"strategy": "single_device", "max_devices": 1}
OPTIONS = {"optimizer": optimizers.Adam(0.02), "batch_size": 32, "seed": 3, "search": ONE}


def session(data=None, **more):
    return espalier.aio.Session(small.graph(), data, **{**OPTIONS, **more})


async def loop(open_session, steps=8):
    losses = []
    for _ in range(steps):
        await open_session.zero_gradients()
        losses.append((await open_session.forward())["loss"])
        await open_session.backward()
        assert (await open_session.update())["learning_rate"] == pytest.approx(0.02)
    return losses


def blocking(data, steps=8):
    with espalier.Session(small.graph(), data, **OPTIONS) as found:
        found.step(steps=steps)
        return [values["loss"] for values in found.steps], found.parameters()


def test_a_loop_has_the_bits_of_the_blocking_session(daemon):
    data = small.examples()

    async def go():
        async with espalier.aio.AsyncClient(daemon.address) as client, session(data, client=client) as found:
            losses = await loop(found)
            assert await found.updates == await found.forwards == 8
            assert (found.examples, found.ended, found.parameter_count) == (256, False, 53)
            await found.step(steps=2)
            assert len(found.steps) == 2
            return losses, await found.parameters(), found

    losses, parameters, found = asyncio.run(go())
    want, weights = blocking(data, 10)
    assert losses == want[:8]
    for name, array in weights.items():
        np.testing.assert_array_equal(parameters[name], array)
    assert found.ended


def test_two_sessions_train_at_once(daemon):
    data = small.examples()

    async def go():
        async with session(data) as first, session(data) as second:
            return await asyncio.gather(loop(first), loop(second))

    first, second = asyncio.run(go())
    assert first == second == blocking(data)[0]


def test_the_command_of_a_cancelled_coroutine_is_carried_out_once(daemon):
    data = small.examples()

    async def go():
        found = await session(data)
        for _ in range(4):
            step = asyncio.create_task(found.step())
            await asyncio.sleep(0)  # it has begun
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
        later = asyncio.create_task(found.step(steps=300))
        await asyncio.sleep(0.01)
        later.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await later
        await found.step()
        assert await found.updates == 305
        weights = await found.parameters()
        await found.close()
        return weights

    weights = asyncio.run(go())
    for name, array in blocking(data, 305)[1].items():
        np.testing.assert_array_equal(weights[name], array)


def test_errors_reach_who_waits(daemon):
    async def go():
        with pytest.raises(errors.FailedPrecondition, match="is not open"):
            await session().parameters()
        with pytest.raises(errors.InvalidArgument, match="optimizer 'addam'"):
            await session(optimizer="addam")
        async with session() as found:
            with pytest.raises(errors.NotFound, match="w9"):
                await found.get("w9")
            lost = asyncio.create_task(found.get("w9"))
            await asyncio.sleep(0)
            lost.cancel()
            with pytest.raises(asyncio.CancelledError):
                await lost
            with pytest.raises(errors.NotFound, match="w9"):  # nobody has seen it
                await found.parameters()
            assert set(await found.parameters()) == {"w1", "b1", "w2", "b2"}
        with pytest.raises(errors.FailedPrecondition, match="closed"):
            await found.step(small.examples(32))

    asyncio.run(go())


def test_a_cancelled_opening_leaves_no_session(daemon):
    async def go():
        opening = asyncio.create_task(session(small.examples())._open())
        await asyncio.sleep(0.02)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await opening
        # It takes all workers.
        async with session(small.examples(), search={"strategy": "data_parallel"}) as found:
            await found.step()

    asyncio.run(go())


def test_it_has_all_of_the_blocking_session():
    names = {name for name in vars(espalier.Session) if not name.startswith("_")}
    assert names <= set(vars(espalier.aio.Session))
    ours, theirs = (inspect.signature(kind.__init__).parameters for kind in (espalier.aio.Session, espalier.Session))
    assert list(ours) == list(theirs)
    assert {n: p.default for n, p in ours.items()} == {n: p.default for n, p in theirs.items()}


def test_the_guide_runs(daemon):
    names = run("sessions.md", {"graph": small.graph(), "data": small.examples()})
    assert names["fast"][0] < names["slow"][0]
    assert set(names["fast"][1]) == {"w1", "b1", "w2", "b2"}
