"""The kinds of graph nodes, and which operation of a framework is of which kind.

The table has a fixed order and a version: a trained model knows its inputs by both. New kinds go
to the end, with a new version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Rises when a kind is added.
VERSION: Final = 1

#: The kinds that the source names.
SOURCE: Final = (
    "AddV2",
    "BiasAdd",
    "BiasAddGrad",
    "Mul",
    "MatMul",
    "Conv2D",
    "Concat",
    "Softmax",
    "ReLU",
    "MaxPool",
    "AvgPool",
)
#: All kinds, in the order in which a vector has them. `OTHER` is work of no kind of its own.
OTHER: Final = "Other"
KINDS: Final = (
    *SOURCE,
    "Attention",
    "Norm",
    "Embedding",
    "SiLU",
    "GELU",
    "DepthwiseConv2D",
    "Conv2DGrad",
    "DepthwiseConv2DGrad",
    "AttentionGrad",
    "NormGrad",
    "EmbeddingGrad",
    "Recurrent",
    "RecurrentGrad",
    OTHER,
)
PLACE: Final[Mapping[str, int]] = {kind: place for place, kind in enumerate(KINDS)}

#: ATen operations (without their overload's name). One that is not here is `OTHER`.
ATEN: Final[Mapping[str, str]] = {
    "add": "AddV2",
    "add_": "AddV2",
    "sub": "AddV2",
    "mul": "Mul",
    "mul_": "Mul",
    "mm": "MatMul",
    "bmm": "MatMul",
    "addmm": "MatMul",
    "baddbmm": "MatMul",
    "linear": "MatMul",
    "matmul": "MatMul",
    "convolution": "Conv2D",
    "_convolution": "Conv2D",
    "convolution_backward": "Conv2DGrad",
    "cat": "Concat",
    "stack": "Concat",
    "_softmax": "Softmax",
    "_log_softmax": "Softmax",
    "relu": "ReLU",
    "relu_": "ReLU",
    "hardtanh": "ReLU",
    "hardtanh_": "ReLU",
    "leaky_relu": "ReLU",
    "leaky_relu_": "ReLU",
    "max_pool2d_with_indices": "MaxPool",
    "max_pool3d_with_indices": "MaxPool",
    "avg_pool2d": "AvgPool",
    "avg_pool3d": "AvgPool",
    "_adaptive_avg_pool2d": "AvgPool",
    "_scaled_dot_product_flash_attention_for_cpu": "Attention",
    "_scaled_dot_product_flash_attention": "Attention",
    "_scaled_dot_product_efficient_attention": "Attention",
    "_scaled_dot_product_cudnn_attention": "Attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "AttentionGrad",
    "_scaled_dot_product_flash_attention_backward": "AttentionGrad",
    "_scaled_dot_product_efficient_attention_backward": "AttentionGrad",
    "_scaled_dot_product_cudnn_attention_backward": "AttentionGrad",
    "native_layer_norm": "Norm",
    "native_group_norm": "Norm",
    "native_batch_norm": "Norm",
    "_native_batch_norm_legit": "Norm",
    "cudnn_batch_norm": "Norm",
    "_fused_rms_norm": "Norm",
    "native_layer_norm_backward": "NormGrad",
    "native_group_norm_backward": "NormGrad",
    "native_batch_norm_backward": "NormGrad",
    "cudnn_batch_norm_backward": "NormGrad",
    "_fused_rms_norm_backward": "NormGrad",
    "embedding": "Embedding",
    "_embedding_bag": "Embedding",
    "embedding_dense_backward": "EmbeddingGrad",
    "_embedding_bag_backward": "EmbeddingGrad",
    "silu": "SiLU",
    "silu_": "SiLU",
    "hardswish": "SiLU",
    "hardswish_": "SiLU",
    "gelu": "GELU",
    "mkldnn_rnn_layer": "Recurrent",
    "mkldnn_rnn_layer_backward": "RecurrentGrad",
    "_cudnn_rnn": "Recurrent",
    "_cudnn_rnn_backward": "RecurrentGrad",
    "_thnn_fused_lstm_cell": "Recurrent",
    "_thnn_fused_gru_cell": "Recurrent",
}

#: JAX's primitives. Softmax and the norms have none of their own there: their parts are counted.
JAX: Final[Mapping[str, str]] = {
    "add": "AddV2",
    "sub": "AddV2",
    "mul": "Mul",
    "dot_general": "MatMul",
    "conv_general_dilated": "Conv2D",
    "concatenate": "Concat",
    "reduce_window_max": "MaxPool",
    "reduce_window_sum": "AvgPool",
    "max": "ReLU",
    "logistic": "SiLU",
    "erf": "GELU",
    "gather": "Embedding",
    "scatter-add": "EmbeddingGrad",
}
#: Functions of JAX that are one node, by the name of their inner `jit`.
JAX_CALLS: Final[Mapping[str, str]] = {
    "relu": "ReLU",
    "relu6": "ReLU",
    "leaky_relu": "ReLU",
    "silu": "SiLU",
    "swish": "SiLU",
    "gelu": "GELU",
    "_gelu": "GELU",
    "softmax": "Softmax",
    "_softmax": "Softmax",
    "log_softmax": "Softmax",
    "dot_product_attention": "Attention",
}

#: TensorFlow's operations, Keras' graphs among them.
TENSORFLOW: Final[Mapping[str, str]] = {
    "Add": "AddV2",
    "AddV2": "AddV2",
    "AddN": "AddV2",
    "Sub": "AddV2",
    "BiasAdd": "BiasAdd",
    "BiasAddGrad": "BiasAddGrad",
    "Mul": "Mul",
    "MatMul": "MatMul",
    "BatchMatMul": "MatMul",
    "BatchMatMulV2": "MatMul",
    "BatchMatMulV3": "MatMul",
    "Einsum": "MatMul",
    "Conv2D": "Conv2D",
    "Conv3D": "Conv2D",
    "DepthwiseConv2dNative": "DepthwiseConv2D",
    "Conv2DBackpropInput": "Conv2DGrad",
    "Conv2DBackpropFilter": "Conv2DGrad",
    "DepthwiseConv2dNativeBackpropInput": "DepthwiseConv2DGrad",
    "DepthwiseConv2dNativeBackpropFilter": "DepthwiseConv2DGrad",
    "ConcatV2": "Concat",
    "Concat": "Concat",
    "Pack": "Concat",
    "Softmax": "Softmax",
    "LogSoftmax": "Softmax",
    "SoftmaxCrossEntropyWithLogits": "Softmax",
    "SparseSoftmaxCrossEntropyWithLogits": "Softmax",
    "Relu": "ReLU",
    "Relu6": "ReLU",
    "LeakyRelu": "ReLU",
    "MaxPool": "MaxPool",
    "MaxPoolV2": "MaxPool",
    "AvgPool": "AvgPool",
    "FusedBatchNormV3": "Norm",
    "FusedBatchNormGradV3": "NormGrad",
    "GatherV2": "Embedding",
    "ResourceGather": "Embedding",
    "UnsortedSegmentSum": "EmbeddingGrad",
    "Sigmoid": "SiLU",
    "Erf": "GELU",
}
