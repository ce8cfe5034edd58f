"""`can_fuse` and `fuse_layer`: the layers of a decoder as a GPU's kernels compute them (`kernels.gpu.layer_kernels`)."""

from __future__ import annotations

from torch import Tensor

from everlong_models.backbone.decoder.folding import entering, fold_attention, has_bias, leaving, scaled
from everlong_models.backbone.decoder.parts import Description, GatedMLP, LayerDescription, Mixture
from everlong_models.kernels.experts import GroupedExperts
from everlong_models.kernels.gpu import layer_kernels
from everlong_models.kernels.gpu.layer_kernels import FusedLayer, FusedMLP
from everlong_models.kernels.norms import HeadNorm


def can_fuse(shape: Description, weight: Tensor) -> bool:
    """Return whether the kernels support this model here. `weight` (V, D): of its head. Compiles the kernels."""
    first = shape.layers[0]
    if any(layer.norms.tensors().keys() != first.norms.tensors().keys() for layer in shape.layers):
        return False
    mixtures = [layer.mlp for layer in shape.layers if isinstance(layer.mlp, Mixture)]
    mlps = [layer.mlp for layer in shape.layers if not isinstance(layer.mlp, Mixture)]
    if len({type(mlp) for mlp in mlps}) > 1:
        return False
    shifted, mlp = first.norm_biases is not None, mlps[0] if mlps else None
    matrix = None if mlp is None else mlp.gate if isinstance(mlp, GatedMLP) else mlp.up
    return layer_kernels.available(
        weight, first.norms, HeadNorm.of(first.norms, shape.heads, shape.kv_heads, shape.eps), shape.activation,
        heads=shape.heads + 2 * shape.kv_heads, turning=shape.heads + shape.kv_heads, head_dim=shape.head_dim,
        rotary={0 if each is None else 2 * len(each) for each in shape.rotations.frequencies()},
        width=weight.shape[1], inner=None if mlp is None else mlp.down.split[0].shape[1],
        biases=(shifted or has_bias(first.q, first.k), shifted or (matrix is not None and has_bias(matrix))),
        gated=isinstance(mlp, GatedMLP),
    ) and (not mixtures or _grouped(mixtures[0], shape).available())  # fmt: skip


def fuse_layer(layer: LayerDescription, shape: Description) -> FusedLayer:
    """Return a layer of a model for which `can_fuse`. Shares the weights of experts; all others are new."""
    qkv, o, head_norm = fold_attention(layer, shape)
    mlp: FusedMLP | GroupedExperts
    if isinstance(layer.mlp, Mixture):
        mlp = _grouped(layer.mlp, shape)
    else:
        gate = (layer.mlp.gate,) if isinstance(layer.mlp, GatedMLP) else ()
        _, norm_bias = layer.norm_biases or (None, None)
        both = entering((*gate, layer.mlp.up), layer.norms.between, norm_bias)
        mlp = FusedMLP(both, leaving(layer.mlp.down, shape), shape.activation, gated=bool(gate))
    return FusedLayer(
        qkv=qkv, o=o, mlp=mlp, eps=shape.eps, norms=layer.norms, head_norm=head_norm, parallel=shape.parallel
    )


def _grouped(mixture: Mixture, shape: Description) -> GroupedExperts:
    """Return a mixture without folding the norm into its weights: for that, a GPU may lack the memory."""
    both, down = mixture.experts.gate_up_proj.detach(), mixture.experts.down_proj.detach()
    return GroupedExperts(mixture.router, both, scaled(down, shape.residual), shape.activation)
