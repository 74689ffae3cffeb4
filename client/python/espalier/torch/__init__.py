"""PyTorch modules trained by Espalier.

    from espalier.torch import Trainer

    trainer = Trainer(module, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.AdamW(module.parameters(), lr=1e-3))
    history = trainer.fit(loader, epochs=3)  # the module then has the trained weights

`to_graph` converts a module without training it.
"""

from __future__ import annotations

from espalier.extras import extra

with extra("torch", "torch"):
    from espalier.torch.module_graph import ModuleGraph, to_graph
    from espalier.torch.trainer import Trainer

__all__ = ["ModuleGraph", "Trainer", "to_graph"]
