"""The client for asyncio.

    async with espalier.aio.AsyncClient() as client:
        job = await client.submit(spec)
        async for event in job.events():
            ...

Methods are those of espalier.Client and espalier.Job; each returns a coroutine.
"""

from espalier.client import AsyncClient
from espalier.job import AsyncJob

__all__ = ["AsyncClient", "AsyncJob"]
