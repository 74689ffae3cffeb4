"""The client for asyncio.

    async with espalier.aio.AsyncClient() as client:
        job = await client.submit(spec)
        async for event in job.events():
            ...

    async with espalier.aio.Session(graph, data, optimizer="adam", batch_size=64) as session:
        values = await session.step(steps=100)

Methods are those of espalier.Client, espalier.Job, espalier.Replay and espalier.Session; each returns a coroutine.
"""

from espalier.async_session import Session
from espalier.client import AsyncClient
from espalier.job import AsyncJob
from espalier.replay import AsyncReplay

__all__ = ["AsyncClient", "AsyncJob", "AsyncReplay", "Session"]
