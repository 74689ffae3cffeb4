"""FFModel: FlexFlow's model."""

from __future__ import annotations

from espalier.core.config import FFConfig
from espalier.core.layer import Op
from espalier.core.layers_experts import ExpertLayers
from espalier.core.layers_shape import ShapeLayers
from espalier.core.running import Running
from espalier.errors import NotFound


class FFModel(Running, ExpertLayers, ShapeLayers):
    """A model: layers, then compile, then fit, eval, or a loop of forward, zero_gradients, backward and update.

    The first use after compile leases workers of the daemon, all that are idle or FFConfig.max_devices of them, until
    close(), or the end of the program. A model that finds none takes them from other models of the program, whose
    parameters are kept and come back when they are used again. Not thread-safe.
    """

    def __init__(self, ffconfig: FFConfig):
        Running.__init__(self, ffconfig)
        self._penalties: dict[str, tuple[float, float]] = {}
        self._capacities: dict[int, float] = {}

    def get_layers(self) -> dict[int, Op]:
        """All layers by their numbers, from 0."""
        return dict(self._layers)

    def get_layer_by_id(self, layer_id: int) -> Op:
        """A layer by its number. NotFound if there is none."""
        if layer_id not in self._layers:
            raise NotFound(f"the model has {len(self._layers)} layers, not one of number {layer_id}")
        return self._layers[layer_id]

    def get_layer_by_name(self, layer_name: str) -> Op:
        """The first layer of a name. NotFound if there is none."""
        for layer in self._layers.values():
            if layer.name == layer_name:
                return layer
        raise NotFound(f"no layer {layer_name!r}; there are {', '.join(layer.name for layer in self._layers.values())}")

    def print_layers(self, id: int = -1) -> None:
        """Prints the layers, or one of them."""
        for number, layer in self._layers.items():
            if id in (-1, number):
                shapes = ", ".join(f"{p.name} {list(p.dims)}" for p in layer.parameters)
                print(f"{number} {layer!r} {shapes}".rstrip())
